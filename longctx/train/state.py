"""Everything that training changes, as one pytree."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array
from jaxtyping import Int, UInt32


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["step", "params", "opt_state", "carry"],
    meta_fields=[],
)
@dataclass(frozen=True)
class TrainState:
    """The number of steps taken, the parameters, and what optimizer and network remember."""

    step: Int[Array, ""]
    params: nnx.State
    opt_state: Any
    carry: Any = None
    """What the network's layers carry to the next batch; None if its rows don't go on."""

    @classmethod
    def create(
        cls, params: nnx.State, optimizer: optax.GradientTransformation, carry: Any = None
    ) -> "TrainState":
        """Return the state before the first step.

        The carry is copied: a step consumes each array, and some may be one and the same.
        """
        carry = jax.tree.map(jnp.copy, carry)
        return cls(jnp.zeros((), jnp.int32), params, optimizer.init(params), carry)


@jax.jit
def fingerprint(tree: Any) -> UInt32[Array, " leaves"]:
    """Return a 32-bit sum over the bits of each leaf, weighted by place.

    Computed where the leaves lie; it changes with any flipped bit and nearly any other damage.
    """
    return jnp.stack([_sum_bits(leaf) for leaf in jax.tree.leaves(tree)])


def _sum_bits(x: Array) -> Array:
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32).reshape(-1)
    odd = 2 * jnp.arange(bits.size, dtype=jnp.uint32) + 1
    return jnp.sum(bits * odd, dtype=jnp.uint32)
