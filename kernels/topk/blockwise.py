"""The nearest keys tile by tile: no more than one tile of scores exists at a time."""

from functools import partial

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import Array, lax

from kernels.attention.mask import mask
from kernels.attention.padding import pad
from kernels.attention.places import Places
from kernels.attention.spec import Pattern

ROWS = 256
COLUMNS = 4096

Best = tuple[Array, Array]
"""The largest scores so far [batch kv_heads group rows count], falling, and their keys."""


def blockwise(
    q: Array,
    k: Array,
    k_scale: Array | None,
    count: int,
    pattern: Pattern,
    q_at: Places,
    k_at: Places,
    recall: float,
) -> tuple[Array, Array]:
    """Return (scores, index); see `kernels.topk.nearest`. Serves every call, exactly."""
    sizes = ROWS, COLUMNS
    return _search(q, k, k_scale, q_at, k_at, count, pattern, 1.0, sizes)


def approximate(
    q: Array,
    k: Array,
    k_scale: Array | None,
    count: int,
    pattern: Pattern,
    q_at: Places,
    k_at: Places,
    recall: float,
) -> tuple[Array, Array]:
    """Return (scores, index) with an expected recall; see `kernels.topk.nearest`.

    Each tile gives its largest by partial reduction (Chern et al. 2022), and tiles merge exactly,
    so what a tile finds of its own nearest bounds what is found of all.

    Raises:
        NotImplementedError: the search has to be exact.
    """
    if recall == 1.0:
        raise NotImplementedError("the approximate search needs a recall below 1")
    sizes = ROWS, COLUMNS
    return _search(q, k, k_scale, q_at, k_at, count, pattern, recall, sizes)


# Jitted, so that calls outside of a jitted function do not compile their loops each time.
@partial(jax.jit, static_argnames=("count", "pattern", "recall", "sizes"))
def _search(
    q: Array,
    k: Array,
    k_scale: Array | None,
    q_at: Places,
    k_at: Places,
    count: int,
    pattern: Pattern,
    recall: float,
    sizes: tuple[int, int],
) -> tuple[Array, Array]:
    q_len, rows, columns = q.shape[2], min(sizes[0], q.shape[2]), min(sizes[1], k.shape[2])
    q = pad(rearrange(q, "b (kv group) q d -> b kv group q d", kv=k.shape[1]), 3, rows)
    q_at = jax.tree.map(lambda x: pad(x, 1, rows, -1), q_at)

    def one_row(i: Array) -> Best:
        q_i = lax.dynamic_slice_in_dim(q, i * rows, rows, 3).astype(jnp.float32)
        q_at_i = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, i * rows, rows, 1), q_at)
        return _nearest_of_row(q_i, k, k_scale, q_at_i, k_at, count, pattern, recall, columns)

    scores, index = lax.map(one_row, jnp.arange(q.shape[3] // rows))
    join = "i b kv group q count -> b (kv group) (i q) count"
    scores, index = (rearrange(x, join)[:, :, :q_len] for x in (scores, index))
    return scores, jnp.where(scores == -jnp.inf, -1, index)


def _nearest_of_row(
    q: Array,
    k: Array,
    k_scale: Array | None,
    q_at: Places,
    k_at: Places,
    count: int,
    pattern: Pattern,
    recall: float,
    columns: int,
) -> Best:
    k_len = k.shape[2]

    def one_tile(j: Array, best: Best) -> Best:
        # The last tile starts early instead of being padded, which would copy all keys.
        start = jnp.minimum(j * columns, k_len - columns)
        take = partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=columns)
        index = start + jnp.arange(columns, dtype=jnp.int32)
        seen = mask(pattern, q_at, jax.tree.map(lambda x: take(x, axis=1), k_at))
        seen &= index >= j * columns

        def merged(best: Best) -> Best:
            tile = take(k, axis=2).astype(jnp.float32)
            scores = jnp.einsum("bkgqd,bkjd->bkgqj", q, tile, precision="highest")
            if k_scale is not None:
                scores *= take(k_scale, axis=2)[:, :, None, None]
            scores = jnp.where(seen[:, :, None], scores, -jnp.inf)
            # What was found before stands first, so that of equal keys the first is kept.
            both = zip(best, _of_tile(scores, index, count, recall), strict=True)
            scores, index_of = (jnp.concatenate(pair, axis=-1) for pair in both)
            scores, place = lax.top_k(scores, count)
            return scores, jnp.take_along_axis(index_of, place, axis=-1)

        return lax.cond(seen.any(), merged, lambda best: best, best)

    shape = (*q.shape[:-1], count)
    start = jnp.full(shape, -jnp.inf), jnp.full(shape, -1, jnp.int32)
    return lax.fori_loop(0, -(-k_len // columns), one_tile, start)


def _of_tile(scores: Array, index: Array, count: int, recall: float) -> Best:
    """Return what of a tile may be among the nearest of all."""
    if recall == 1.0:
        return scores, jnp.broadcast_to(index, scores.shape)
    # Partial reduction compares numbers, and has no notion of -inf as missing.
    least = jnp.finfo(jnp.float32).min
    found = lax.approx_max_k(
        jnp.maximum(scores, least), min(count, index.size), recall_target=recall
    )
    scores, place = found
    return jnp.where(scores == least, -jnp.inf, scores), index[place]
