"""Which tokens of a row count, where they stand, and to which document they belong."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from kernels.attention.places import Places, resolved


def real_tokens(x: Float[Array, "batch len model"], at: Places) -> Bool[Array, "batch len"]:
    """Return which tokens of `x` are no padding."""
    real = jnp.ones(x.shape[:2], bool)
    for part in (at.positions, at.segments):
        real = real if part is None else real & (part >= 0)
    return real


def document_numbers(real: Bool[Array, "batch len"], at: Places) -> Int[Array, "batch len"]:
    """Number the documents of each row in their order; padding counts to the one before it."""
    if at.segments is None:
        return jnp.zeros(real.shape, jnp.int32)
    segments = jnp.broadcast_to(at.segments, real.shape)
    index = jnp.where(real, jnp.arange(real.shape[1]), 0)
    before = jnp.pad(jax.lax.cummax(index, axis=1), [(0, 0), (1, 0)])[:, :-1]
    starts = real & (segments != jnp.take_along_axis(segments, before, axis=1))
    return jnp.cumsum(starts, axis=1, dtype=jnp.int32)


def each_row(at: Places, real: Bool[Array, "batch len"]) -> Places:
    """Return positions and segments for every row; padding stands at -1."""
    counted = resolved(at, real.shape[1])
    assert counted.positions is not None
    segments = None if at.segments is None else jnp.broadcast_to(at.segments, real.shape)
    return Places(jnp.where(real, counted.positions, -1), segments)
