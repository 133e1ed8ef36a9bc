"""Which block of every array a step needs."""

from jax.experimental import pallas as pl

from kernels.attention.pallas_tpu.tile import Inputs, Plan
from kernels.attention.pallas_tpu.walk import read
from kernels.attention.term import Entries


def input_specs(plan: Plan, inputs: Inputs) -> Inputs:
    """Return the block specs of the inputs, for a grid as `grid` gives it.

    Entries are listed from the largest distance down, from the left neighbour of the leftmost tile
    on, so the tile (row, column) has the block column - row + q_tiles and its neighbour the one
    before.
    """
    keys = _key_spec(plan, inputs)
    return Inputs(
        q=query_spec(plan, inputs),
        k=keys,
        v=keys,
        left=_entry_specs(plan, inputs, -1),
        right=_entry_specs(plan, inputs, 0),
        segments=_segment_specs(plan, inputs),
    )


def grid(inputs: Inputs, steps: int) -> tuple[int, int, int, int]:
    """Return (key heads, batch, query heads of one key head, steps), the innermost last."""
    batch, heads = inputs.q.shape[:2]
    kv_heads = inputs.k.shape[1]
    return kv_heads, batch, heads // kv_heads, steps


def query_spec(plan: Plan, inputs: Inputs) -> pl.BlockSpec:
    """Return the spec of an array [batch, heads, q_len, dim]."""
    group = inputs.q.shape[1] // inputs.k.shape[1]

    def at_row(kv, b, g, t, steps):
        return b, kv * group + g, read(steps, t).row, 0

    return pl.BlockSpec((None, None, plan.size, inputs.q.shape[3]), at_row)


def row_spec(plan: Plan, inputs: Inputs) -> pl.BlockSpec:
    """Return the spec of an array [batch, heads, 1, q_len], with one number for each query."""
    group = inputs.q.shape[1] // inputs.k.shape[1]

    def at_row(kv, b, g, t, steps):
        return b, kv * group + g, 0, read(steps, t).row

    return pl.BlockSpec((None, None, 1, plan.size), at_row)


def _key_spec(plan: Plan, inputs: Inputs) -> pl.BlockSpec:
    def at_column(kv, b, g, t, steps):
        return b, kv, read(steps, t).column, 0

    return pl.BlockSpec((None, None, plan.size, inputs.q.shape[3]), at_column)


def _entry_specs(plan: Plan, inputs: Inputs, side: int) -> Entries:
    group = inputs.q.shape[1] // inputs.k.shape[1]
    q_tiles, entries = inputs.q.shape[2] // plan.size, inputs.right

    def block(table, kv, g, t, steps):
        at = read(steps, t)
        return (kv * group + g if table.shape[0] > 1 else 0), at.column - at.row + q_tiles + side

    def embeddings(kv, b, g, t, steps):
        head, distances = block(entries.embeddings, kv, g, t, steps)
        return head, distances, 0

    def bias(kv, b, g, t, steps):
        head, distances = block(entries.bias, kv, g, t, steps)
        return head, 0, distances

    specs = Entries()
    if entries.embeddings is not None:
        shape = (None, plan.size, inputs.q.shape[3])
        specs = specs._replace(embeddings=pl.BlockSpec(shape, embeddings))
    if entries.bias is not None:
        specs = specs._replace(bias=pl.BlockSpec((None, 1, plan.size), bias))
    return specs


def _segment_specs(plan: Plan, inputs: Inputs) -> tuple[pl.BlockSpec, pl.BlockSpec] | None:
    if inputs.segments is None:
        return None
    q_rows, k_rows = (x.shape[0] for x in inputs.segments)

    def of_queries(kv, b, g, t, steps):
        return b if q_rows > 1 else 0, 0, read(steps, t).row

    def of_keys(kv, b, g, t, steps):
        return b if k_rows > 1 else 0, 0, read(steps, t).column

    block = (None, 1, plan.size)
    return pl.BlockSpec(block, of_queries), pl.BlockSpec(block, of_keys)
