"""The forward kernel for TPUs: an online softmax over the live tiles (Dao et al. 2022)."""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Int32

from kernels.attention.pallas_tpu.band import Band
from kernels.attention.pallas_tpu.specs import grid, input_specs, query_spec, row_spec
from kernels.attention.pallas_tpu.tile import (
    MASKED,
    Inputs,
    Plan,
    band_of,
    column,
    open_run,
    product,
    score_rows,
    wide,
)
from kernels.attention.pallas_tpu.walk import At, Step, read, walk
from kernels.attention.spec import Tile
from kernels.attention.tile_map import tile_map
from kernels.cost import Cost, attention_cost, live_tiles


class Scratch(NamedTuple):
    """What lives from tile to tile."""

    top: Any
    """[size, lanes]: each row's largest score so far, in every lane."""
    total: Any
    """[size, lanes]: the sum of its weights."""
    acc: Any
    """[size, dim]: its weighted values."""
    carry: Any = None
    """The left neighbour's sheared squares."""
    q_segments: Any = None
    """[size, lanes]"""


def forward(plan: Plan, inputs: Inputs) -> tuple[Array, Array]:
    """Return out [batch, heads, q_len, dim] and lse [batch, heads, 1, q_len], padded to tiles."""
    batch, heads, q_len, dim = inputs.q.shape
    steps = row_walk(plan)
    size, lanes = plan.size, plan.lanes
    f32 = partial(pltpu.VMEM, dtype=jnp.float32)
    band, segmented = band_of(plan, inputs), inputs.segments is not None
    return pl.pallas_call(
        partial(_kernel, plan, band),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=grid(inputs, len(steps) - 2),
            in_specs=[input_specs(plan, inputs)],
            out_specs=[query_spec(plan, inputs), row_spec(plan, inputs)],
            scratch_shapes=[
                Scratch(
                    top=f32((size, lanes)),
                    total=f32((size, lanes)),
                    acc=f32((size, dim)),
                    carry=band.carry() if band else None,
                    q_segments=pltpu.VMEM((size, lanes), jnp.int32) if segmented else None,
                )
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct(inputs.q.shape, inputs.q.dtype),
            jax.ShapeDtypeStruct((batch, heads, 1, q_len), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        cost_estimate=_cost(plan, inputs).estimate(),
        interpret=plan.interpret,
        name="attention_forward",
    )(jnp.asarray(steps), inputs)


@lru_cache(maxsize=64)
def row_walk(plan: Plan) -> Int32[np.ndarray, " words"]:
    """Return a walk over all rows of tiles, padding included, so that all output is written."""
    kinds = tile_map(plan.pattern, plan.q_len, plan.k_len, plan.size, plan.size)
    more = [(0, plan.q_tiles - kinds.shape[0]), (0, 0)]
    return walk(np.pad(kinds, more, constant_values=Tile.SKIP))


def _cost(plan: Plan, inputs: Inputs) -> Cost:
    live = live_tiles(plan.pattern, plan.q_len, plan.k_len, plan.size, plan.size)
    tables = int(inputs.right.embeddings is not None)
    return attention_cost(inputs.q, inputs.k, live, plan.size, plan.size, term_matmuls=tables)


def _kernel(
    plan: Plan,
    band: Band | None,
    steps: Any,
    x: Inputs,
    out: Any,
    lse: Any,
    scratch: Scratch,
) -> None:
    at = read(steps, pl.program_id(3))

    @pl.when(at.has(Step.FIRST))
    def _():
        scratch.top[...] = jnp.full_like(scratch.top, MASKED)
        scratch.total[...] = jnp.zeros_like(scratch.total)
        scratch.acc[...] = jnp.zeros_like(scratch.acc)
        if x.segments is not None:
            scratch.q_segments[...] = column(x.segments[0][...], plan.lanes)

    if band is not None:
        pl.when(at.has(Step.OPEN))(lambda: open_run(plan, band, x, scratch.carry))
    live, masked = at.has(Step.LIVE), at.has(Step.MASK)
    pl.when(live & masked)(lambda: _tile(plan, band, at, x, scratch, masked=True))
    pl.when(live & ~masked)(lambda: _tile(plan, band, at, x, scratch, masked=False))

    @pl.when(at.has(Step.LAST))
    def _():
        nan = jnp.isnan(scratch.total[...])  # a maximum may lose it, the sum does not
        blind = (scratch.top[...] <= MASKED / 2) & ~nan
        total = jnp.where(blind, 1.0, scratch.total[...])
        share = jnp.where(blind, 0.0, 1.0 / total)
        out[...] = (scratch.acc[...] * wide(share, out.shape[1])).astype(out.dtype)
        lse[...] = jnp.where(blind, -jnp.inf, scratch.top[...] + jnp.log(total)).T[:1]


def _tile(plan: Plan, band: Band | None, at: At, x: Inputs, scratch: Scratch, masked: bool) -> None:
    rows = score_rows(plan, band, at, x, scratch.carry, scratch.q_segments, masked)
    weights = []
    for a, scores in enumerate(rows):
        part = plan.part(a)
        old = scratch.top[part]
        top = jnp.maximum(old, scores.max(axis=1, keepdims=True))
        w = jnp.exp(scores - wide(top, plan.size))
        shrink = jnp.exp(old - top)
        scratch.top[part] = top
        scratch.total[part] = scratch.total[part] * shrink + w.sum(axis=1, keepdims=True)
        scratch.acc[part] = scratch.acc[part] * wide(shrink, scratch.acc.shape[1])
        weights.append(w.astype(x.v.dtype))
        if band is None:  # with a term, the compiler does better with one large product
            scratch.acc[part] += product(weights.pop(), x.v[...], (1, 0))
    if weights:
        scratch.acc[...] += product(jnp.concatenate(weights), x.v[...], (1, 0))
