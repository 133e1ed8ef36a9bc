"""The gradients of keys and values: a program for each block of keys and each key head.

It goes through the query heads of its group and their live blocks of queries in a fixed order, so
sums are the same in every run. Tiles have a row for each key.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels.attention.pallas_gpu.plan import Plan, Schedule, column_schedule
from kernels.attention.pallas_gpu.tile import (
    LOG2E,
    Gradients,
    Operands,
    Place,
    Ring,
    allowed,
    bias_of,
    compiler,
    dot,
    fill,
    for_each_item,
    for_each_run,
    grid,
    interpreted,
    start_of,
    wait,
)


def backward_kv(plan: Plan, x: Operands, g: Gradients) -> tuple[Array, Array]:
    """Return the gradients of k and v, in their dtype.

    With embeddings it needs a buffer of `PROGRAMS * rows * band` numbers of that dtype at most.
    """
    batch, kv_heads, k_padded, _ = x.k.shape
    blocks = plan.blocks.backward_kv
    items = batch * kv_heads * (k_padded // blocks.columns)
    programs = grid(items, ringed=x.embeddings is not None)
    shapes = [jax.ShapeDtypeStruct(x.k.shape, x.k.dtype)] * 2
    if x.embeddings is not None:
        shapes.append(jax.ShapeDtypeStruct((programs, blocks.rows, blocks.band), x.q.dtype))
    dk, dv, *_ = pl.pallas_call(
        partial(_kernel, plan, items, programs),
        out_shape=shapes,
        grid=(programs,),
        compiler_params=compiler(blocks),
        interpret=interpreted(),
        name="attention_backward_kv",
    )(x, g, column_schedule(plan, blocks))
    return dk, dv


def _kernel(
    plan: Plan, items: int, programs: int, x: Operands, g: Gradients, schedule: Schedule,
    dk, dv, buffer=None,
) -> None:  # fmt: skip
    _, kv_heads, k_padded, dim = x.k.shape
    group = x.q.shape[1] // kv_heads
    columns = plan.blocks.backward_kv.columns
    column_blocks = k_padded // columns
    ring = None if buffer is None else Ring(buffer, pl.program_id(0))

    def item(index):
        j = lax.rem(index, column_blocks)
        b, kv = (
            lax.div(index, column_blocks * kv_heads),
            lax.rem(lax.div(index, column_blocks), kv_heads),
        )
        here = (b, kv, pl.ds(j * columns, columns), slice(None))
        k, v = x.k[here], x.v[here]

        def one_head(member, carry):
            at = Place(b, kv * group + member, kv, jnp.int32(0), j * columns)
            return for_each_run(schedule, j, partial(_run, plan, x, g, ring, at, k, v), carry)

        zero = jnp.zeros((columns, dim), jnp.float32)
        d_keys, d_values = lax.fori_loop(0, group, one_head, (zero, zero))
        dk[here] = d_keys.astype(dk.dtype)
        dv[here] = d_values.astype(dv.dtype)

    for_each_item(items, programs, item)


def _run(plan: Plan, x: Operands, g: Gradients, ring, at: Place, k, v, masked, first, stop, carry):
    rows = plan.blocks.backward_kv.rows

    def one(i, carry):
        dk, dv = carry
        here = at._replace(row=i * rows)
        queries = (here.batch, here.head, pl.ds(here.row, rows))
        q, d_out = x.q[*queries, :], g.d_out[*queries, :]
        scores = _scores(plan, x, ring, here, q, k, masked)
        weights = jnp.exp2((scores - g.lse[queries][None]) * LOG2E)
        dv = dv + dot(weights.astype(d_out.dtype), d_out)
        d_scores = weights * (dot(v, d_out, (1, 1)) - g.delta[queries][None])
        return dk + dot(d_scores.astype(q.dtype), q), dv

    return lax.fori_loop(first, stop, one, carry)


def _scores(plan: Plan, x: Operands, ring: Ring | None, at: Place, q, k, masked: bool) -> Array:
    """Return the scores of a tile, -inf where pairs don't talk."""
    blocks = plan.blocks.backward_kv
    scores = dot(k, q, (1, 1))
    if ring is not None:
        start = start_of(plan, blocks, at)
        wait()  # the last tile's loads come first
        for step in range(0, blocks.rows + blocks.columns, blocks.chunk):
            fill(x, ring, at, q, start + step, blocks.chunk)
        wait()
        band = ring.get(start + blocks.rows - 1, blocks.columns, slope=-1)
        scores += band.T.astype(jnp.float32)
    if x.bias is not None:
        scores += bias_of(plan, blocks, x, at, turned=True)
    seen = allowed(plan, blocks, x, at, masked, turned=True)
    return scores if seen is None else jnp.where(seen, scores, -jnp.inf)
