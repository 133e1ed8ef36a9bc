"""The forward kernel: online softmax over the live tiles of a block of queries.

Dao et al. 2022, algorithm 1, with the term of Huang et al. 2018, section 3.4.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels.attention.pallas_gpu.plan import Plan, Schedule, row_schedule
from kernels.attention.pallas_gpu.rows import scores_of, start_run
from kernels.attention.pallas_gpu.tile import (
    LOG2E,
    Operands,
    Place,
    Ring,
    compiler,
    dot,
    for_each_item,
    for_each_run,
    grid,
    interpreted,
)


def forward(plan: Plan, x: Operands) -> tuple[Array, Array]:
    """Return (out, lse) of padded operands; out in the dtype of q.

    With embeddings it needs a buffer of `PROGRAMS * rows * ring` numbers of that dtype at most.
    """
    batch, heads, q_padded, _ = x.q.shape
    blocks = plan.blocks.forward
    items = batch * heads * (q_padded // blocks.rows)
    programs = grid(items, ringed=x.embeddings is not None)
    shapes = [
        jax.ShapeDtypeStruct(x.q.shape, x.q.dtype),
        jax.ShapeDtypeStruct(x.q.shape[:3], jnp.float32),
    ]
    if x.embeddings is not None:
        shapes.append(jax.ShapeDtypeStruct((programs, blocks.rows, blocks.ring), x.q.dtype))
    out, lse, *_ = pl.pallas_call(
        partial(_kernel, plan, items, programs),
        out_shape=shapes,
        grid=(programs,),
        compiler_params=compiler(blocks),
        interpret=interpreted(),
        name="attention_forward",
    )(x, row_schedule(plan, blocks))
    return out, lse


def _kernel(
    plan: Plan, items: int, programs: int, x: Operands, schedule: Schedule, out, lse, buffer=None
) -> None:
    _, heads, q_padded, dim = x.q.shape
    group = heads // x.k.shape[1]
    rows = plan.blocks.forward.rows
    row_blocks = q_padded // rows
    ring = None if buffer is None else Ring(buffer, pl.program_id(0))

    def item(index):
        i = row_blocks - 1 - lax.rem(index, row_blocks)
        b, h = lax.div(index, row_blocks * heads), lax.rem(lax.div(index, row_blocks), heads)
        at = Place(b, h, lax.div(h, group), i * rows, jnp.int32(0))
        q = x.q[b, h, pl.ds(i * rows, rows), :]
        start = (
            jnp.full((rows,), -jnp.inf, jnp.float32),
            jnp.zeros((rows,), jnp.float32),
            jnp.zeros((rows, dim), jnp.float32),
        )
        top, total, acc = for_each_run(schedule, i, partial(_run, plan, x, ring, at, q), start)
        safe = jnp.where(total == 0, 1.0, total)  # a NaN stays one
        out[b, h, pl.ds(i * rows, rows), :] = (acc / safe[:, None]).astype(out.dtype)
        lse[b, h, pl.ds(i * rows, rows)] = jnp.where(total == 0, -jnp.inf, top + jnp.log(safe))

    for_each_item(items, programs, item)


def _run(
    plan: Plan, x: Operands, ring: Ring | None, at: Place, q, masked: bool, first, stop, carry
):
    blocks = plan.blocks.forward
    start_run(plan, blocks, x, ring, at._replace(column=first * blocks.columns), q)

    def one(j, carry):
        top, total, acc = carry
        here = at._replace(column=j * blocks.columns)
        keys = (here.batch, here.kv_head, pl.ds(here.column, blocks.columns), slice(None))
        scores, seen = scores_of(plan, blocks, x, ring, here, q, x.k[keys], masked)
        new_top = jnp.maximum(top, scores.max(axis=1))
        finite = new_top if seen is None else jnp.where(new_top > -jnp.inf, new_top, 0.0)
        weights = jnp.exp2((scores - finite[:, None]) * LOG2E)
        shrink = jnp.exp2((top - finite) * LOG2E)
        acc = acc * shrink[:, None] + dot(weights.astype(x.v.dtype), x.v[keys])
        return new_top, total * shrink + weights.sum(axis=1), acc

    return lax.fori_loop(first, stop, one, carry)
