"""The gradient of the queries: a program for each block of them, as in the forward kernel.

The term's part is `dq[r] += sum_u dR[r, u] E[u]`, where `dR` holds the scores' gradients by
distance instead of by key. They go through a second ring, whose columns are keys: stored as they
are, loaded skewed. After tile j of a run, the first `columns` distances of its tile are complete:
what other keys they need lies in earlier tiles. The rest follows at the end of the run.

Each tile meets at two barriers, one between its store to either ring and its load from it. The two
rings take turns, so the next store to a ring comes after the barrier of the other one, and with
that after all loads for this tile.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels.attention.pallas_gpu.plan import Plan, Schedule, listed, row_schedule
from kernels.attention.pallas_gpu.rows import scores_of, start_run
from kernels.attention.pallas_gpu.tile import (
    LOG2E,
    Gradients,
    Operands,
    Place,
    Ring,
    along,
    compiler,
    dot,
    entries_of,
    for_each_item,
    for_each_run,
    grid,
    interpreted,
    start_of,
    wait,
)


def backward_q(plan: Plan, x: Operands, g: Gradients) -> Array:
    """Return the gradient of q, in its dtype.

    With embeddings it needs two buffers of `PROGRAMS * rows * band` numbers of that dtype at most.
    """
    batch, heads, q_padded, _ = x.q.shape
    blocks = plan.blocks.backward_q
    items = batch * heads * (q_padded // blocks.rows)
    programs = grid(items, ringed=x.embeddings is not None)
    shapes = [jax.ShapeDtypeStruct(x.q.shape, x.q.dtype)]
    if x.embeddings is not None:
        shapes += [jax.ShapeDtypeStruct((programs, blocks.rows, blocks.band), x.q.dtype)] * 2
    return pl.pallas_call(
        partial(_kernel, plan, items, programs),
        out_shape=shapes,
        grid=(programs,),
        compiler_params=compiler(blocks),
        interpret=interpreted(),
        name="attention_backward_q",
    )(x, g, row_schedule(plan, blocks))[0]


def _kernel(
    plan: Plan, items: int, programs: int, x: Operands, g: Gradients, schedule: Schedule,
    dq, *buffers,
) -> None:  # fmt: skip
    _, heads, q_padded, dim = x.q.shape
    group = heads // x.k.shape[1]
    rows = plan.blocks.backward_q.rows
    row_blocks = q_padded // rows
    rings = tuple(Ring(buffer, pl.program_id(0)) for buffer in buffers)

    def item(index):
        i = row_blocks - 1 - lax.rem(index, row_blocks)
        b, h = lax.div(index, row_blocks * heads), lax.rem(lax.div(index, row_blocks), heads)
        at = Place(b, h, lax.div(h, group), i * rows, jnp.int32(0))
        here = (b, h, pl.ds(i * rows, rows))
        given = (x.q[*here, :], Gradients(g.d_out[*here, :], g.lse[here], g.delta[here]))
        zero = jnp.zeros((rows, dim), jnp.float32)
        total = for_each_run(schedule, i, partial(_run, plan, x, rings, at, *given), zero)
        dq[*here, :] = total.astype(dq.dtype)

    for_each_item(items, programs, item)


def _run(plan: Plan, x: Operands, rings, at: Place, q, g: Gradients, masked, first, stop, dq):
    blocks = plan.blocks.backward_q
    ring, d_ring = rings or (None, None)
    k_from, k_to = first * blocks.columns, stop * blocks.columns
    start_run(plan, blocks, x, ring, at._replace(column=k_from), q)

    def add_term(to: Ring, u, columns: int, dq):
        """Add the part of the distances from `u` on, of the keys of this run up to now."""
        key = at.row + u + (listed(plan)[0] - plan.q_padded + 1)
        keys = key + along(0, blocks.rows) + along(1, columns)
        d_band = to.get(key, columns, slope=1)
        inside = (keys >= k_from) & (keys < k_to)
        d_band = jnp.where(inside, d_band, jnp.zeros_like(d_band))
        return dq + dot(d_band, entries_of(x.embeddings, at, u, columns))

    def one(j, dq):
        here = at._replace(column=j * blocks.columns)
        keys = (here.batch, here.kv_head, pl.ds(here.column, blocks.columns), slice(None))
        k = x.k[keys]
        scores, _ = scores_of(plan, blocks, x, ring, here, q, k, masked)
        weights = jnp.exp2((scores - g.lse[:, None]) * LOG2E)
        d_weights = dot(g.d_out, x.v[keys], (1, 1))
        d_scores = (weights * (d_weights - g.delta[:, None])).astype(q.dtype)
        dq = dq + dot(d_scores, k)
        if d_ring is not None:
            d_ring.put(here.column, d_scores)
            wait()
            dq = add_term(d_ring, start_of(plan, blocks, here), blocks.columns, dq)
        return dq

    dq = lax.fori_loop(first, stop, one, dq)
    if d_ring is not None:
        rest = start_of(plan, blocks, at._replace(column=k_to))
        for step in range(0, blocks.rows, blocks.chunk):
            dq = add_term(d_ring, rest + step, blocks.chunk, dq)
    return dq
