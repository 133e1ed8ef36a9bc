"""Which block of every array a step needs."""

from jax import lax
from jax.experimental import pallas as pl

from kernels.attention.pallas_tpu.tile import Inputs, Plan
from kernels.attention.pallas_tpu.walk import read
from kernels.attention.term import Entries


def input_specs(plan: Plan, inputs: Inputs) -> Inputs:
    """Return the block specs of the inputs, for a grid of (batch, heads, steps).

    Entries are listed from the largest distance down, from the left neighbour of the leftmost tile
    on, so the tile (row, column) has the block column - row + q_tiles and its neighbour the one
    before.
    """
    size, dim = plan.size, inputs.q.shape[3]
    group = inputs.q.shape[1] // inputs.k.shape[1]

    def at_row(b, h, t, steps):
        return b, h, read(steps[t]).row, 0

    def at_column(b, h, t, steps):
        return b, lax.div(h, group), read(steps[t]).column, 0

    keys = pl.BlockSpec((None, None, size, dim), at_column)
    return Inputs(
        q=pl.BlockSpec((None, None, size, dim), at_row),
        k=keys,
        v=keys,
        left=_entry_specs(plan, inputs.left, dim, -1),
        right=_entry_specs(plan, inputs.right, dim, 0),
        segments=_segment_specs(plan, inputs),
    )


def _entry_specs(plan: Plan, entries: Entries, dim: int, side: int) -> Entries:
    def block(table, h, t, steps):
        at = read(steps[t])
        head = h if table.shape[0] > 1 else 0
        return head, at.column - at.row + plan.q_tiles + side

    def embeddings(b, h, t, steps):
        head, distances = block(entries.embeddings, h, t, steps)
        return head, distances, 0

    def bias(b, h, t, steps):
        head, distances = block(entries.bias, h, t, steps)
        return head, 0, distances

    specs = Entries()
    if entries.embeddings is not None:
        specs = specs._replace(embeddings=pl.BlockSpec((None, plan.size, dim), embeddings))
    if entries.bias is not None:
        specs = specs._replace(bias=pl.BlockSpec((None, 1, plan.size), bias))
    return specs


def _segment_specs(plan: Plan, inputs: Inputs) -> tuple[pl.BlockSpec, pl.BlockSpec] | None:
    if inputs.segments is None:
        return None
    rows = inputs.segments[0].shape[0]

    def of_queries(b, h, t, steps):
        return b if rows > 1 else 0, 0, read(steps[t]).row

    def of_keys(b, h, t, steps):
        return b if rows > 1 else 0, 0, read(steps[t]).column

    block = (None, 1, plan.size)
    return pl.BlockSpec(block, of_queries), pl.BlockSpec(block, of_keys)
