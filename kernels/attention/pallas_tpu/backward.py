"""The backward kernel for TPUs: all gradients in one walk, summed in one fixed order.

Tiles are recomputed from the saved logsumexp (Dao et al. 2022, algorithm 4). The sums over queries
(for keys, values and the term's entries) stay in vector memory for the whole walk, so what it can
serve is a stretch of some thousand tokens; `call` goes through longer ones in pieces.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from kernels.attention.pallas_tpu.band import Band
from kernels.attention.pallas_tpu.specs import grid, input_specs, query_spec, row_spec
from kernels.attention.pallas_tpu.tile import (
    Inputs,
    Plan,
    band_of,
    column,
    open_run,
    product,
    score_rows,
    wide,
)
from kernels.attention.pallas_tpu.walk import At, Step, read
from kernels.attention.term import Entries
from kernels.cost import Cost, attention_cost


class Given(NamedTuple):
    """What a tile needs besides the forward pass's inputs."""

    d_out: Any
    """[size, dim]"""
    lse: Any
    """[1, size]"""
    delta: Any
    """[1, size]: the sum of d_out * out over dim, less the gradient of lse."""


class Gradients(NamedTuple):
    """Of queries by tile; of keys, values and entries for all tiles of the walk. In float32."""

    q: Any
    """[size, dim]"""
    k: Any
    """[k_len, dim]"""
    v: Any
    """[k_len, dim]"""
    entries: Any
    """`Entries`: embeddings [distances, dim]; bias [distances / size, size]."""


class Scratch(NamedTuple):
    """What lives from tile to tile."""

    lse: Any
    """[size, lanes]: each row's, in every lane."""
    delta: Any
    """[size, lanes]"""
    carry: Any = None
    """The left neighbour's sheared squares."""
    rest: Any = None
    """Its unsheared gradients that wait for this tile's."""
    q_segments: Any = None
    """[size, lanes]"""


def backward(plan: Plan, steps: Array, inputs: Inputs, given: Given) -> Gradients:
    """Return the gradients of the arrays at hand; those of entries have a batch axis in front.

    That axis is 1, summed over the batch, unless query heads share keys.
    """
    band, size, f32 = band_of(plan, inputs), plan.size, partial(pltpu.VMEM, dtype=jnp.float32)
    segments = pltpu.VMEM((size, plan.lanes), jnp.int32) if inputs.segments else None
    row = row_spec(plan, inputs)
    shapes = _shapes(plan, inputs)
    return pl.pallas_call(
        partial(_kernel, plan, band, inputs.q.shape[2] // size),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid(inputs, steps.shape[0] - 2),
            in_specs=[input_specs(plan, inputs), Given(query_spec(plan, inputs), row, row)],
            out_specs=[_specs(plan, inputs, shapes)],
            scratch_shapes=[
                Scratch(
                    lse=f32((size, plan.lanes)),
                    delta=f32((size, plan.lanes)),
                    carry=band.carry() if band else None,
                    rest=band.carry() if band else None,
                    q_segments=segments,
                )
            ],
        ),
        out_shape=[shapes],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "arbitrary", "arbitrary", "arbitrary"),
            vmem_limit_bytes=plan.vmem_bytes,
        ),
        cost_estimate=_cost(plan, steps.shape[0] - 2, inputs).estimate(),
        interpret=plan.interpret,
        name="attention_backward",
    )(steps, inputs, given)[0]


def _shapes(plan: Plan, inputs: Inputs) -> Gradients:
    batch, heads, q_len, dim = inputs.q.shape
    shape = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    rows = 1 if heads == inputs.k.shape[1] else batch
    tiles = (q_len + inputs.k.shape[2]) // plan.size
    embeddings = bias = None
    if inputs.right.embeddings is not None:
        embeddings = shape((rows, heads, tiles * plan.size, dim))
    if inputs.right.bias is not None:
        bias = shape((rows, heads, tiles, plan.size))
    keys = shape(inputs.k.shape)
    return Gradients(shape(inputs.q.shape), keys, keys, Entries(embeddings, bias))  # pyright: ignore[reportArgumentType]


def _specs(plan: Plan, inputs: Inputs, shapes: Gradients) -> Gradients:
    group = inputs.q.shape[1] // inputs.k.shape[1]

    def of_keys(kv, b, g, t, steps):
        return b, kv, 0, 0

    def of_entries(kv, b, g, t, steps):
        return b if group > 1 else 0, kv * group + g, 0, 0

    def whole(index_map, x):
        return pl.BlockSpec((None, None, *x.shape[2:]), index_map)

    keys = whole(of_keys, shapes.k)
    entries = jax.tree.map(partial(whole, of_entries), shapes.entries)
    return Gradients(query_spec(plan, inputs), keys, keys, entries)


def _cost(plan: Plan, tiles: int, inputs: Inputs) -> Cost:
    tables = int(inputs.right.embeddings is not None)
    return attention_cost(
        inputs.q, inputs.k, tiles, plan.size, plan.size, term_matmuls=tables, backward=True
    )


def _kernel(
    plan: Plan,
    band: Band | None,
    q_tiles: int,
    steps: Any,
    x: Inputs,
    given: Given,
    to: Gradients,
    scratch: Scratch,
) -> None:
    b, g, t = (pl.program_id(axis) for axis in (1, 2, 3))
    at, shared = read(steps, t), pl.num_programs(2) > 1
    distances = at.column - at.row + q_tiles

    @pl.when((t == 0) & (g == 0))
    def _():
        to.k[...] = jnp.zeros_like(to.k)
        to.v[...] = jnp.zeros_like(to.v)

    @pl.when((t == 0) & ((b == 0) | shared))
    def _():
        for leaf in jax.tree.leaves(to.entries):
            leaf[...] = jnp.zeros_like(leaf)

    @pl.when(at.has(Step.FIRST))
    def _():
        to.q[...] = jnp.zeros_like(to.q)
        scratch.lse[...] = column(given.lse[...], plan.lanes)
        scratch.delta[...] = column(given.delta[...], plan.lanes)
        if x.segments is not None:
            scratch.q_segments[...] = column(x.segments[0][...], plan.lanes)

    if band is not None:

        @pl.when(at.has(Step.OPEN))
        def _():
            open_run(plan, band, x, scratch.carry)
            scratch.rest[...] = jnp.zeros_like(scratch.rest)

    live, masked = at.has(Step.LIVE), at.has(Step.MASK)
    for flag in (True, False):
        tile = partial(_tile, plan, band, at, distances, x, given, to, scratch, flag)
        pl.when(live & (masked if flag else ~masked))(tile)
    if band is not None:
        pl.when(at.has(Step.CLOSE))(partial(_close_run, plan, band, distances, x, to, scratch))


def _tile(
    plan: Plan,
    band: Band | None,
    at: At,
    distances: Array,
    x: Inputs,
    given: Given,
    to: Gradients,
    scratch: Scratch,
    masked: bool,
) -> None:
    q, k, d_out, dtype = x.q[...], x.k[...], given.d_out[...], x.q.dtype
    d_weights = product(d_out, x.v[...], (1, 1))
    weights, d_scores = [], []
    rows = score_rows(plan, band, at, x, scratch.carry, scratch.q_segments, masked)
    for a, scores in enumerate(rows):
        part = plan.part(a)
        w = jnp.exp(scores - wide(scratch.lse[part], plan.size))
        weights.append(w.astype(dtype))
        d_scores.append(w * (d_weights[part] - wide(scratch.delta[part], plan.size)))
    keys = pl.ds(pl.multiple_of(at.column * plan.size, plan.size), plan.size)
    to.v[keys, :] += product(jnp.concatenate(weights), d_out, (0, 0))
    d_scores_cast = jnp.concatenate(d_scores).astype(dtype)
    to.k[keys, :] += product(d_scores_cast, q, (0, 0))
    to.q[...] += product(d_scores_cast, k, (1, 0))
    if band is not None:
        _add_term(plan, band, distances - 1, x, x.left, d_scores, to, scratch.rest)


def _close_run(
    plan: Plan,
    band: Band,
    distances: Array,
    x: Inputs,
    to: Gradients,
    scratch: Scratch,
) -> None:
    _add_term(plan, band, distances, x, x.right, None, to, scratch.rest)


def _add_term(
    plan: Plan,
    band: Band,
    block: Array,
    x: Inputs,
    entries: Entries,
    d_scores: list[Array] | None,
    to: Gradients,
    rest: Any,
) -> None:
    """Add what the gradient by distance of a block of entries means for queries and entries."""
    rows = []
    for a in range(0, plan.squares, band.together):
        together = None if d_scores is None else d_scores[a : a + band.together]
        rows += band.by_distance(a, together, rest)
    by_distance = jnp.concatenate(rows)
    if entries.embeddings is not None:
        cast = by_distance.astype(x.q.dtype)
        to.q[...] += product(cast, entries.embeddings[...], (1, 0))
        rows = pl.ds(pl.multiple_of(block * plan.size, plan.size), plan.size)
        to.entries.embeddings[rows, :] += product(cast, x.q[...], (0, 0))
    if entries.bias is not None:
        to.entries.bias[pl.ds(block, 1), :] += by_distance.sum(axis=0, keepdims=True)
