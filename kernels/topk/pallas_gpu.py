"""The nearest keys on GPUs through Pallas and Triton: scores of a tile never leave its program.

A program keeps the best of one block of queries over one part of the keys, unordered, since Triton
has no sort. In each tile it takes the largest score of every row in the place of the least one it
holds, until no row improves; most tiles improve few rows, so this ends soon. Parts merge at last.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from kernels.attention.padding import pad
from kernels.attention.pallas_gpu.tile import along, dot, interpreted
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.platform import platform

ROWS = 32
COLUMNS = 64
WARPS = 4
PROGRAMS = 1024
"""How many programs keep any GPU busy: keys are cut in parts until there are so many."""
LARGEST_COUNT = 128
LARGEST_DIM = 128
KEYS = (jnp.float32, jnp.bfloat16, jnp.int8)


class Sizes(NamedTuple):
    """Queries and keys of a tile, and how many programs there should be."""

    rows: int
    columns: int
    programs: int


class Operands(NamedTuple):
    """The inputs of the kernel, all padded; refs inside it."""

    q: Array
    k: Array
    k_scale: Array | None
    q_at: Places
    k_at: Places


def pallas_gpu(
    q: Array,
    k: Array,
    k_scale: Array | None,
    count: int,
    pattern: Pattern,
    q_at: Places,
    k_at: Places,
    recall: float,
) -> tuple[Array, Array]:
    """Return (scores, index), exact at any recall; see `kernels.topk.nearest`.

    On a CPU the kernel is interpreted.

    Raises:
        NotImplementedError: the device is no GPU and no CPU; `count` is above `LARGEST_COUNT` or
            dim above `LARGEST_DIM`; or the keys' dtype is none of `KEYS`.
    """
    if platform() not in ("cpu", "gpu"):
        raise NotImplementedError(f"pallas_gpu serves GPUs, and CPUs to test it, not {platform()}")
    if count > LARGEST_COUNT or q.shape[3] > LARGEST_DIM:
        raise NotImplementedError(
            f"pallas_gpu serves a count of up to {LARGEST_COUNT} and a dim of up to {LARGEST_DIM}, "
            f"not {count} and {q.shape[3]}"
        )
    if k.dtype not in KEYS:
        raise NotImplementedError(f"pallas_gpu serves float32, bfloat16 and int8, not {k.dtype}")
    sizes = Sizes(ROWS, COLUMNS, PROGRAMS)
    return _search(q, k, k_scale, q_at, k_at, count, pattern, sizes)


# Jitted, so that calls outside of a jitted function do not compile the kernel each time.
@partial(jax.jit, static_argnames=("count", "pattern", "sizes"))
def _search(
    q: Array,
    k: Array,
    k_scale: Array | None,
    q_at: Places,
    k_at: Places,
    count: int,
    pattern: Pattern,
    sizes: Sizes,
) -> tuple[Array, Array]:
    batch, heads, q_len, dim = q.shape
    width = max(16, 1 << (dim - 1).bit_length())
    # Padding copies the keys where a length or dim is no multiple: a store should be one.
    x = Operands(
        pad(pad(q, 3, width), 2, sizes.rows),
        pad(pad(k, 3, width), 2, sizes.columns),
        None if k_scale is None else pad(k_scale.astype(jnp.float32), 2, sizes.columns),
        jax.tree.map(lambda at: pad(at, 1, sizes.rows, -1), q_at),
        jax.tree.map(lambda at: pad(at, 1, sizes.columns, -1), k_at),
    )
    q_padded, tiles = x.q.shape[2], x.k.shape[2] // sizes.columns
    blocks = batch * heads * (q_padded // sizes.rows)
    parts = max(1, min(tiles, sizes.programs // blocks))
    held = max(16, 1 << (count - 1).bit_length())
    shape = (batch, heads, q_padded, parts, held)
    scores, index = pl.pallas_call(
        partial(_kernel, pattern, sizes, -(-tiles // parts), tiles),
        out_shape=[jax.ShapeDtypeStruct(shape, t) for t in (jnp.float32, jnp.int32)],
        grid=(batch * heads, q_padded // sizes.rows, parts),
        compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=2),
        interpret=interpreted(),
        name="nearest",
    )(x)
    flat = (batch, heads, q_padded, parts * held)
    both = lax.sort((-scores.reshape(flat), index.reshape(flat)), num_keys=2)
    missing, index = (found[:, :, :q_len, :count] for found in both)
    return -missing, jnp.where(missing == jnp.inf, -1, index)


def _kernel(
    pattern: Pattern, sizes: Sizes, tiles_of_part: int, tiles: int, x: Operands, scores, index
) -> None:
    batch_head, block, part = (pl.program_id(axis) for axis in range(3))
    heads, held = x.q.shape[1], scores.shape[4]
    b, h = lax.div(batch_head, heads), lax.rem(batch_head, heads)
    kv = lax.div(h, heads // x.k.shape[1])
    rows = pl.ds(block * sizes.rows, sizes.rows)
    q = x.q[b, h, rows, :]

    def one(tile, best):
        column = tile * sizes.columns
        seen = _seen(pattern, x, b, rows, pl.ds(column, sizes.columns))

        def merged(best):
            here = (b, kv, pl.ds(column, sizes.columns))
            new = _product(q, x.k[*here, :])
            if x.k_scale is not None:
                new *= x.k_scale[here][None]
            return _improve(jnp.where(seen, new, -jnp.inf), column, *best)

        return lax.cond(_any(seen), merged, lambda best: best, best)

    # Empty places have indices of their own, so that one at a time is filled.
    empty = jnp.broadcast_to(-1 - along(1, held), (sizes.rows, held))
    start = jnp.full((sizes.rows, held), -jnp.inf, jnp.float32), empty
    first = part * tiles_of_part
    last = jnp.minimum(first + tiles_of_part, tiles)
    best = lax.fori_loop(first, last, one, start)
    scores[b, h, rows, part, :], index[b, h, rows, part, :] = best


def _product(q: Array, k: Array) -> Array:
    """Return float32 products: bfloat16 holds every bfloat16 and int8 key exactly."""
    exact = q.dtype == jnp.bfloat16 and k.dtype != jnp.float32
    dtype = jnp.bfloat16 if exact else jnp.float32
    return dot(q.astype(dtype), k.astype(dtype), (1, 1))


def _seen(pattern: Pattern, x: Operands, b: Array, rows, columns) -> Array:
    """Return which pairs of a tile may be found, as `kernels.attention.mask.mask` says."""

    def pair(ours, theirs):
        mine = ours[b if ours.shape[0] > 1 else 0, rows]
        return mine[:, None], theirs[b if theirs.shape[0] > 1 else 0, columns][None]

    i, j = pair(x.q_at.positions, x.k_at.positions)
    seen = pattern.allows(i, j) & (i >= 0) & (j >= 0)
    if x.q_at.segments is not None and x.k_at.segments is not None:
        ours, theirs = pair(x.q_at.segments, x.k_at.segments)
        seen &= ours == theirs
    return seen


def _improve(new: Array, column: Array, best: Array, index: Array) -> tuple[Array, Array]:
    """Return the best [rows, held] of what was held and a tile [rows, columns] that lies behind.

    Of equal scores the first key is kept: a tile gives its first, and the last held one goes.
    """
    places = jnp.broadcast_to(along(1, new.shape[1]), new.shape)

    def better(state):
        new, best, _ = state
        return _any(jnp.max(new, axis=1) > jnp.min(best, axis=1))

    def step(state):
        new, best, index = state
        most, least = jnp.max(new, axis=1)[:, None], jnp.min(best, axis=1)[:, None]
        place = jnp.min(jnp.where(new == most, places, new.shape[1]), axis=1)[:, None]
        oldest = jnp.iinfo(jnp.int32).min
        gone = jnp.max(jnp.where(best == least, index, oldest), axis=1)[:, None]
        taken = (most > least) & (index == gone)
        best, index = jnp.where(taken, most, best), jnp.where(taken, column + place, index)
        return jnp.where(places == place, -jnp.inf, new), best, index

    return lax.while_loop(better, step, (new, best, index))[1:]


def _any(x: Array) -> Array:
    """Return whether any is true; Triton has no reduction of booleans."""
    return jnp.max(x.astype(jnp.int32)) > 0
