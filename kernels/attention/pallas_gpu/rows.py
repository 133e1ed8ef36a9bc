"""Scores of the tiles of a run of keys, for the kernels whose programs are blocks of queries.

Along a run each tile stores one step of distances to the ring, meets at a barrier, and loads.
While a thread still loads for tile j, another may store the step of tile j + 1: the ring has room
for it beside all that tile j needs. The step of tile j + 2, which may fall on places of tile j,
comes after the barrier of tile j + 1, so after the loads of tile j.
"""

import jax.numpy as jnp
from jax import Array

from kernels.attention.pallas_gpu.plan import Blocks, Plan
from kernels.attention.pallas_gpu.tile import (
    Operands,
    Place,
    Ring,
    allowed,
    bias_of,
    dot,
    fill,
    start_of,
    wait,
)


def start_run(plan: Plan, blocks: Blocks, x: Operands, ring: Ring | None, at: Place, q) -> None:
    """Store the distances of the first tile at `at` that `scores_of` doesn't."""
    if ring is None:
        return
    wait()  # the last run's loads come first
    start = start_of(plan, blocks, at)
    for step in range(0, blocks.rows, blocks.chunk):
        fill(x, ring, at, q, start + step, blocks.chunk)


def scores_of(
    plan: Plan, blocks: Blocks, x: Operands, ring: Ring | None, at: Place, q, k, masked: bool
) -> tuple[Array, Array | None]:
    """Return the scores of a tile, -inf where pairs don't talk, and which pairs do if not all.

    The tiles of a run must come in order.
    """
    if ring is not None:
        start = start_of(plan, blocks, at)
        for step in range(0, blocks.columns, blocks.chunk):
            fill(x, ring, at, q, start + blocks.rows + step, blocks.chunk)
    scores = dot(q, k, (1, 1))
    if ring is not None:
        wait()
        start = start_of(plan, blocks, at)
        scores += ring.get(start + blocks.rows - 1, blocks.columns, slope=-1).astype(jnp.float32)
    if x.bias is not None:
        scores += bias_of(plan, blocks, x, at, turned=False)
    seen = allowed(plan, blocks, x, at, masked, turned=False)
    return (scores if seen is None else jnp.where(seen, scores, -jnp.inf)), seen
