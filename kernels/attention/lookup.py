"""Entries of a table at places known while compiling, with a gradient that never scatters.

XLA's gradient of `table[:, index]` is a scatter-add, which adds repeated places in no fixed order
on a GPU. Slices and broadcasts have pads and sums as their gradient: the same bits every time.
"""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

MAX_RUNS = 256
"""From here on a product with a one-hot matrix compiles and runs faster than so many slices."""


def lookup(
    table: Float[Array, "..."], index: Int[np.ndarray, " places"], axis: int = 1
) -> Float[Array, "..."]:
    """Return `jnp.take(table, index, axis)`, put together from the runs of the index.

    A run stays at a place, climbs by ones or falls by ones; distances in order, clipped or in
    buckets, are few. An index of more than `MAX_RUNS` runs is multiplied out instead, with zeros
    for all other entries, so there the table must be finite.

    Raises:
        ValueError: the index names a place that the table does not have.
    """
    size = table.shape[axis]
    if index.size and not 0 <= index.min() <= index.max() < size:
        raise ValueError(
            f"the index runs from {index.min()} to {index.max()}, the table has {size} entries: "
            "clip the index first"
        )
    found = list(_runs(index))
    if len(found) > MAX_RUNS:
        chosen = jnp.asarray(index[:, None] == np.arange(size), table.dtype)
        entries = jnp.tensordot(table, chosen, axes=(axis, 1), precision="highest")
        return jnp.moveaxis(entries, -1, axis)
    empty = lax.slice_in_dim(table, 0, 0, axis=axis)
    return jnp.concatenate([empty, *(_take(table, axis, *run) for run in found)], axis)


def _runs(index: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Yield (first place, step, length) of each run, from left to right."""
    steps = np.diff(index)
    start = 0
    while start < index.size:
        step = int(steps[start]) if start < steps.size else 0
        if abs(step) > 1:
            yield int(index[start]), 0, 1
            start += 1
            continue
        others = np.flatnonzero(steps[start:] != step)
        length = 1 + int(others[0] if others.size else steps.size - start)
        yield int(index[start]), step, length
        start += length


def _take(table: Array, axis: int, first: int, step: int, length: int) -> Array:
    """Return the table's entries at `first`, `first + step`, ..."""
    if step == 0:
        entry = lax.slice_in_dim(table, first, first + 1, axis=axis)
        shape = list(entry.shape)
        shape[axis] = length
        return jnp.broadcast_to(entry, shape)
    if step > 0:
        return lax.slice_in_dim(table, first, first + length, axis=axis)
    falling = lax.slice_in_dim(table, first - length + 1, first + 1, axis=axis)
    return lax.rev(falling, (axis % table.ndim,))
