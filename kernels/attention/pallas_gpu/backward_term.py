"""The gradient of the term's entries: a program for each head and block of distances.

Its tiles are queries against distances, with a row for each distance. There the term's product
`E Q^T` is plain, and what is skewed is `Q K^T` and `dO V^T`: the pair of query r and distance t
is about the key `first + 1 + r + t`. They go through two rings. A program adds up its block over
batch rows and blocks of queries in a fixed order, so no two programs write to one place. Where
distances are few, as in a window, queries are cut in parts, whose gradients are added at the end.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from kernels.attention.pallas_gpu.plan import Plan, Schedule, listed, term_schedule
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
    wait,
)
from kernels.attention.term import Entries

ENOUGH = 512
"""How many programs keep any GPU busy."""


def backward_term(plan: Plan, x: Operands, g: Gradients) -> Entries:
    """Return the float32 gradient of each head's entries.

    It needs two buffers of `PROGRAMS * rows * band` numbers of the dtype of q at most, and its
    result once for each part.
    """
    heads, q_padded = x.q.shape[1:3]
    first, last = listed(plan)
    blocks = plan.blocks.backward_term
    of_one_part = heads * ((last - first) // blocks.columns)
    parts = max(1, min(q_padded // blocks.rows, ENOUGH // of_one_part))
    items = parts * of_one_part
    programs = grid(items, ringed=True)
    gradients = jax.tree.map(
        lambda e: jax.ShapeDtypeStruct((parts, heads, *e.shape[1:]), jnp.float32),
        Entries(x.embeddings, x.bias),
    )
    ring = jax.ShapeDtypeStruct((programs, blocks.rows, blocks.band), x.q.dtype)
    gradients, *_ = pl.pallas_call(
        partial(_kernel, plan, items, programs),
        out_shape=(gradients, ring, ring),
        grid=(programs,),
        compiler_params=compiler(blocks),
        interpret=interpreted(),
        name="attention_backward_term",
    )(x, g, term_schedule(plan, blocks, parts))
    return jax.tree.map(lambda part: part.sum(axis=0), gradients)


def _kernel(
    plan: Plan, items: int, programs: int, x: Operands, g: Gradients, schedule: Schedule,
    d_entries: Entries, *buffers,
) -> None:  # fmt: skip
    batch, heads, _, dim = x.q.shape
    first, last = listed(plan)
    columns = plan.blocks.backward_term.columns
    distance_blocks = (last - first) // columns
    rings = tuple(Ring(buffer, pl.program_id(0)) for buffer in buffers)

    def item(index):
        e = distance_blocks - 1 - lax.rem(index, distance_blocks)
        part, h = (op(lax.div(index, distance_blocks), heads) for op in (lax.div, lax.rem))
        here = pl.ds(e * columns, columns)
        at = Place(jnp.int32(0), h, lax.div(h, heads // x.k.shape[1]), jnp.int32(0), e * columns)
        own = Entries(
            *(
                None if entries is None else entries_of(entries, at, e * columns, columns)
                for entries in (x.embeddings, x.bias)
            )
        )

        def one_row(b, carry):
            run = partial(_run, plan, x, g, rings, at._replace(batch=b), own)
            return for_each_run(schedule, part * distance_blocks + e, run, carry)

        zero = Entries(
            None if own.embeddings is None else jnp.zeros((columns, dim), jnp.float32),
            None if own.bias is None else jnp.zeros((columns,), jnp.float32),
        )
        total = lax.fori_loop(0, batch, one_row, zero)
        for gradient, sums in zip(d_entries, total, strict=True):
            if gradient is not None:
                gradient[part, h, here] = sums

    for_each_item(items, programs, item)


def _run(
    plan, x: Operands, g: Gradients, rings, at: Place, own: Entries, masked, first, stop, carry
):
    rows = plan.blocks.backward_term.rows

    def one(i, carry: Entries) -> Entries:
        here = at._replace(row=i * rows)
        queries = (here.batch, here.head, pl.ds(here.row, rows))
        q, d_out = x.q[*queries, :], g.d_out[*queries, :]
        scores, d_weights = _skewed(plan, x, rings, here, q, d_out)
        if own.embeddings is not None:
            scores += dot(own.embeddings, q, (1, 1))
        if own.bias is not None:
            scores += own.bias[:, None]
        seen = _allowed(plan, x, here, masked)
        scores = scores if seen is None else jnp.where(seen, scores, -jnp.inf)
        weights = jnp.exp2((scores - g.lse[queries][None]) * LOG2E)
        d_scores = weights * (d_weights - g.delta[queries][None])
        embeddings, bias, _ = carry
        if embeddings is not None:
            embeddings = embeddings + dot(d_scores.astype(q.dtype), q)
        if bias is not None:
            bias = bias + d_scores.sum(axis=1)
        return Entries(embeddings, bias)

    return lax.fori_loop(first, stop, one, carry)


def _first_key(plan: Plan, at: Place) -> Array:
    """Return one less than the key at the tile's first query and distance."""
    return at.row + at.column + (listed(plan)[0] - plan.q_padded)


def _skewed(plan: Plan, x: Operands, rings, at: Place, q, d_out) -> list[Array]:
    """Return `Q K^T` and `dO V^T` of the tile's pairs; keys that don't exist give something."""
    blocks = plan.blocks.backward_term
    first = _first_key(plan, at)
    wait()  # the last tile's loads come first
    for step in range(0, blocks.rows + blocks.columns, blocks.chunk):
        start = jnp.clip(first + step, 0, plan.k_padded - blocks.chunk)
        keys = (at.batch, at.kv_head, pl.ds(pl.multiple_of(start, blocks.chunk), blocks.chunk))
        rings[0].put(first + step, dot(q, x.k[*keys, :], (1, 1)))
        rings[1].put(first + step, dot(d_out, x.v[*keys, :], (1, 1)))
    wait()
    return [ring.get(first + 1, blocks.columns, slope=1).T.astype(jnp.float32) for ring in rings]


def _allowed(plan: Plan, x: Operands, at: Place, masked: bool) -> Array | None:
    """Return which pairs of the tile talk, or None if all do."""
    blocks = plan.blocks.backward_term
    q_index = at.row + along(1, blocks.rows)
    k_index = _first_key(plan, at) + 1 + along(1, blocks.rows) + along(0, blocks.columns)
    seen, there = None, (k_index >= 0) & (k_index < plan.k_len)
    if masked:
        seen = plan.pattern.allows(plan.offset + q_index, k_index) & there
    if x.q_segments is not None and x.k_segments is not None:
        ours = x.q_segments[at.batch, pl.ds(at.row, blocks.rows)][None]
        theirs = x.k_segments[at.batch, jnp.clip(k_index, 0, plan.k_len - 1)]
        same = ours == theirs
        seen = same if seen is None else seen & same
    return seen
