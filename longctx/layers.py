"""The small layers between mixers."""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key

from longctx.dense import Linear

Activation = Literal["gelu", "swiglu"]


def dropout(
    x: Float[Array, "*shape"], rate: float, key: Key[Array, ""] | None
) -> Float[Array, "*shape"]:
    """Return x with a share `rate` of its entries zeroed, the rest scaled up; x without a key."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0).astype(x.dtype)


@jax.custom_vjp
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `x Phi(x)` in its tanh form (Hendrycks & Gimpel 2016); only x is kept for backward.

    `x sigmoid(2u)` and `x (1 + tanh u) / 2` are the same; the gradient uses the first and the value
    the second, so that XLA has nothing in common to keep between them.
    """
    return 0.5 * x * (1.0 + jnp.tanh(_inner(x)))


def _inner(x: Array) -> Array:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


def _gelu_backward(x: Array, dy: Array) -> tuple[Array]:
    sigmoid = jax.nn.sigmoid(2.0 * _inner(x))
    slope = math.sqrt(2 / math.pi) * (1.0 + 3 * 0.044715 * x**2)
    return (dy * (sigmoid + 2.0 * x * sigmoid * (1.0 - sigmoid) * slope),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)


class FeedForward(nnx.Module):
    """`W2 gelu(W1 x)`, or gated `W2 (silu(Wg x) * W1 x)` (SwiGLU, Shazeer 2020)."""

    def __init__(
        self, model: int, hidden: int, activation: Activation, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        self.up = Linear(model, hidden, dtype, rngs)
        self.down = Linear(hidden, model, dtype, rngs)
        self.gate = Linear(model, hidden, dtype, rngs) if activation == "swiglu" else None

    def __call__(self, x: Float[Array, "batch len model"]) -> Float[Array, "batch len model"]:
        if self.gate is None:
            return self.down(gelu(self.up(x)))
        return self.down(nnx.silu(self.gate(x)) * self.up(x))


def unit(x: Float[Array, "*shape dim"]) -> Float[Array, "*shape dim"]:
    """Return float32 vectors of length 1; one of length 0 stays 0."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.maximum((x * x).sum(axis=-1, keepdims=True), 1e-12))
