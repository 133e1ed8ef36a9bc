"""The matrix product of dense layers, with a backward pass that keeps wide arrays in place."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float


@jax.custom_vjp
def matmul(
    x: Float[Array, "*tokens inputs"], weight: Float[Array, "inputs outputs"]
) -> Float[Array, "*tokens outputs"]:
    """Return `x weight`, in the dtype of `x`; sums are float32.

    The gradient of the weight sums over tokens, for which one of its two operands has to be
    transposed. Left to itself XLA transposes the wider one while it computes it, with strided
    writes that cost a CPU more than the product. Here it is the narrower one.
    """
    return x @ weight


def _forward(x: Array, weight: Array):
    return x @ weight, (x, weight)


def _backward(saved, dy: Array):
    x, weight = saved
    dx = dy @ weight.T
    x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
    if x.shape[1] <= dy.shape[1]:
        d_weight = jnp.matmul(x.T, dy, preferred_element_type=jnp.float32)
    else:
        d_weight = jnp.matmul(dy.T, x, preferred_element_type=jnp.float32).T
    return dx, d_weight.astype(weight.dtype)


matmul.defvjp(_forward, _backward)


class Linear(nnx.Module):
    """`x W`: a dense layer without bias, float32 parameters, computing in `dtype`."""

    def __init__(self, inputs: int, outputs: int, dtype: DTypeLike, rngs: nnx.Rngs):
        scale = inputs**-0.5
        self.kernel = nnx.Param(scale * jax.random.normal(rngs.params(), (inputs, outputs)))
        self.dtype = dtype

    def __call__(self, x: Float[Array, "*tokens inputs"]) -> Float[Array, "*tokens outputs"]:
        return matmul(x.astype(self.dtype), self.kernel[...].astype(self.dtype))
