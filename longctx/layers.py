"""The small layers between mixers."""

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Key
from longctx.dense import Linear

Activation = Literal["gelu", "swiglu"]


def linear(inputs: int, outputs: int, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Linear:
    """Return a dense layer without bias, float32 parameters, computing in `dtype`."""
    init = nnx.initializers.variance_scaling(1.0, "fan_in", "normal")
    return Linear(inputs, outputs, dtype, rngs)


def dropout(
    x: Float[Array, "*shape"], rate: float, key: Key[Array, ""] | None
) -> Float[Array, "*shape"]:
    """Return x with a share `rate` of its entries zeroed, the rest scaled up; x without a key."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), 0.0).astype(x.dtype)


class FeedForward(nnx.Module):
    """`W2 gelu(W1 x)`, or gated `W2 (silu(Wg x) * W1 x)` (SwiGLU, Shazeer 2020)."""

    def __init__(
        self, model: int, hidden: int, activation: Activation, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        self.up = linear(model, hidden, dtype, rngs)
        self.down = linear(hidden, model, dtype, rngs)
        self.gate = linear(model, hidden, dtype, rngs) if activation == "swiglu" else None

    def __call__(self, x: Float[Array, "batch len model"]) -> Float[Array, "batch len model"]:
        if self.gate is None:
            return self.down(nnx.gelu(self.up(x)))
        return self.down(nnx.silu(self.gate(x)) * self.up(x))
