"""Attention in O(n) memory for any pattern, term and positions: tiles with an online softmax.

Rows of tiles are scanned; within a row, a loop runs over the tiles that the pattern leaves. The
backward pass recomputes each tile from the saved logsumexp (Dao et al. 2022, algorithms 1 and 4).
"""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jax import Array, lax

from kernels.attention.mask import mask
from kernels.attention.padding import pad
from kernels.attention.places import Places, last_of
from kernels.attention.saved import of_rows, saved
from kernels.attention.spec import Pattern, Tile
from kernels.attention.term import Term
from kernels.attention.tile_map import tile_map
from kernels.attention.tiles import DenseTiles, DistanceTiles, NoTiles, TermTiles

BLOCK = 256


def blockwise(
    q: Array,
    k: Array,
    v: Array,
    pattern: Pattern,
    term: Term | None,
    q_at: Places,
    k_at: Places,
) -> tuple[Array, Array]:
    """Return (out, lse); see `kernels.attention.attention`. Serves every call."""
    kv_heads, q_len, k_len = k.shape[1], q.shape[2], k.shape[2]
    rows, columns = min(BLOCK, q_len), min(BLOCK, k_len)
    consecutive = q_at.positions is None
    q_at, k_at = last_of(q_len, q_at, k_len, k_at)
    q, k, v = (pad(x, axis=2, to=size) for x, size in ((q, rows), (k, columns), (v, columns)))
    q_at, k_at = _pad_places(q_at, rows), _pad_places(k_at, columns)
    counts = (q.shape[2] // rows, k.shape[2] // columns)
    if consecutive:
        live = _live_tiles(pattern, q_len, k_len, rows, columns)
    else:
        live = _every_tile(*counts)

    tiles, params = NoTiles(), ()
    if term is not None:
        tiles, params = DenseTiles(term.adds_values), term
        by_distance = DistanceTiles(term.adds_values, rows, columns, *counts)
        entries = term.by_distance(by_distance.distances(k_len - q_len)) if consecutive else None
        if entries is not None:
            tiles, params = by_distance, entries
    grouped = rearrange(q, "b (kv group) q d -> b kv group q d", kv=kv_heads)
    plan = (pattern, tiles, rows, columns, live)
    out, lse = _core(plan, grouped, k, v, params, q_at, k_at)  # pyright: ignore
    out = rearrange(out, "b kv group q d -> b (kv group) q d")[:, :, :q_len]
    return out, rearrange(lse, "b kv group q -> b (kv group) q")[:, :, :q_len]


def live_tiles(pattern: Pattern, q_len: int, k_len: int) -> tuple[int, int]:
    """Return how many tiles are computed for consecutive tokens, and how many there are."""
    kinds = tile_map(pattern, q_len, k_len, min(BLOCK, q_len), min(BLOCK, k_len))
    return int((kinds != Tile.SKIP).sum()), kinds.size


def _pad_places(at: Places, to: int) -> Places:
    fills = zip(at, (-1, -1, 0), strict=True)
    return Places(*(None if x is None else pad(x, 1, to, fill) for x, fill in fills))


class _Live:
    """For each row of tiles, the columns of its live tiles: `columns[i, :counts[i]]`."""

    def __init__(self, rows: list[list[int]]):
        self.counts = np.array([len(row) for row in rows], np.int32)
        self.columns = np.zeros((len(rows), max(1, *self.counts)), np.int32)
        for i, row in enumerate(rows):
            self.columns[i, : len(row)] = row


@lru_cache(maxsize=64)
def _live_tiles(pattern: Pattern, q_len: int, k_len: int, rows: int, columns: int) -> _Live:
    kinds = tile_map(pattern, q_len, k_len, rows, columns)
    return _Live([np.flatnonzero(row != Tile.SKIP).tolist() for row in kinds])


@lru_cache(maxsize=64)
def _every_tile(rows: int, columns: int) -> _Live:
    return _Live([list(range(columns))] * rows)


Plan = tuple[Pattern, TermTiles, int, int, _Live]


def _tile(plan: Plan, q_at: Places, k_at: Places, q: Array, k: Array, part) -> Array:
    """Return the masked float32 scores [batch kv group rows columns] of one tile."""
    pattern, tiles, *_ = plan
    scores = jnp.einsum("bkgqd,bkjd->bkgqj", q, k, preferred_element_type=jnp.float32)
    if not isinstance(tiles, NoTiles):
        summand = tiles.scores(_flat(q), part, q_at, k_at)
        scores += _grouped(summand, k.shape[1])
    return jnp.where(mask(pattern, q_at, k_at)[:, :, None], scores, -jnp.inf)


def _values(plan: Plan, q_at: Places, k_at: Places, weights: Array, part) -> Array:
    """Return what the term adds to the weighted values of one tile."""
    return _grouped(plan[1].values(_flat(weights), part, q_at, k_at), weights.shape[1])


def _flat(x: Array) -> Array:
    return rearrange(x, "b kv group q d -> b (kv group) q d")


def _grouped(x: Array, kv_heads: int) -> Array:
    return rearrange(x, "b (kv group) q d -> b kv group q d", kv=kv_heads)


def _take_places(at: Places, index: Array, size: int) -> Places:
    return jax.tree.map(lambda x: _take(x, index, size, 1), at)


def _take(x: Array, index: Array, size: int, axis: int) -> Array:
    return lax.dynamic_slice_in_dim(x, index * size, size, axis)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _core(plan: Plan, q, k, v, params, q_at, k_at) -> tuple[Array, Array]:
    return _forward(plan, q, k, v, params, q_at, k_at)[0]


def _forward(plan: Plan, q, k, v, params, q_at, k_at):
    _, tiles, rows, columns, live = plan

    def one_row(_, row):
        i, count, live_columns = row
        q_i, q_at_i = _take(q, i, rows, 3), _take_places(q_at, i, rows)

        def one_tile(t, carry):
            top, total, acc = carry
            j = live_columns[t]
            k_j, v_j = _take(k, j, columns, 2), _take(v, j, columns, 2)
            k_at_j, part = _take_places(k_at, j, columns), tiles.take(params, i, j)
            scores = _tile(plan, q_at_i, k_at_j, q_i, k_j, part)
            new_top = jnp.maximum(top, scores.max(axis=-1))
            finite = jnp.where(jnp.isfinite(new_top), new_top, 0.0)
            weights = jnp.exp(scores - finite[..., None])
            shrink = jnp.exp(top - finite)
            add = jnp.einsum(
                "bkgqj,bkjd->bkgqd", weights.astype(v.dtype), v_j,
                preferred_element_type=jnp.float32,
            )  # fmt: skip
            if tiles.adds_values:
                add += _values(plan, q_at_i, k_at_j, weights, part)
            return new_top, total * shrink + weights.sum(axis=-1), acc * shrink[..., None] + add

        start = (
            jnp.full(q_i.shape[:-1], -jnp.inf),
            jnp.zeros(q_i.shape[:-1]),
            jnp.zeros(q_i.shape, jnp.float32),
        )
        top, total, acc = lax.fori_loop(0, count, one_tile, start)
        safe = jnp.where(total == 0, 1.0, total)
        lse = jnp.where(total == 0, -jnp.inf, top + jnp.log(safe))
        return None, (acc / safe[..., None], lse)

    _, (out, lse) = lax.scan(one_row, None, _rows(live))
    out, lse = saved(
        rearrange(out, "i b kv group q d -> b kv group (i q) d"),
        rearrange(lse, "i b kv group q -> b kv group (i q)"),
    )
    return (out, lse), (q, k, v, params, q_at, k_at, out, lse)


def _rows(live: _Live) -> tuple[Array, Array, Array]:
    return jnp.arange(len(live.counts)), jnp.asarray(live.counts), jnp.asarray(live.columns)


def _backward(plan: Plan, residuals, cotangents):
    _, tiles, rows, columns, live = plan
    q, k, v, params, q_at, k_at, out, lse = residuals
    d_out, d_lse = cotangents
    lse, delta = of_rows(out, lse, d_out, d_lse)
    f32 = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.float32))

    def one_row(carry, row):
        i, count, live_columns = row
        q_i, q_at_i = _take(q, i, rows, 3), _take_places(q_at, i, rows)
        d_out_i, delta_i, lse_i = (_take(x, i, rows, 3) for x in (d_out, delta, lse))

        def one_tile(t, carry):
            dq_i, dk, dv, d_params = carry
            j = live_columns[t]
            k_j, v_j = _take(k, j, columns, 2), _take(v, j, columns, 2)
            k_at_j, part = _take_places(k_at, j, columns), tiles.take(params, i, j)
            scores, pull = jax.vjp(partial(_tile, plan, q_at_i, k_at_j), q_i, k_j, part)
            weights = jnp.exp(scores - lse_i[..., None])
            d_weights = jnp.einsum("bkgqd,bkjd->bkgqj", d_out_i, v_j.astype(jnp.float32))
            d_values = None
            if tiles.adds_values:
                values = partial(_values, plan, q_at_i, k_at_j)
                more, d_values = jax.vjp(values, weights, part)[1](d_out_i)
                d_weights += more
            dq_t, dk_j, d_part = pull(weights * (d_weights - delta_i[..., None]))
            if d_values is not None:
                d_part = jax.tree.map(jnp.add, d_part, d_values)
            dv_j = jnp.einsum("bkgqj,bkgqd->bkjd", weights, d_out_i)
            dk = _add(dk, dk_j, j * columns)
            dv = _add(dv, dv_j, j * columns)
            return dq_i + dq_t, dk, dv, tiles.add(d_params, d_part, i, j)

        dq_i, *rest = lax.fori_loop(0, count, one_tile, (f32(q_i), *carry))
        return tuple(rest), dq_i

    (dk, dv, d_params), dq = lax.scan(one_row, (f32(k), f32(v), f32(params)), _rows(live))
    dq = rearrange(dq, "i b kv group q d -> b kv group (i q) d")
    cast = partial(jax.tree.map, lambda g, x: g.astype(x.dtype))
    return cast(dq, q), cast(dk, k), cast(dv, v), cast(d_params, params), None, None


def _add(total: Array, part: Array, start: Array) -> Array:
    old = lax.dynamic_slice_in_dim(total, start, part.shape[2], 2)
    return lax.dynamic_update_slice_in_dim(total, old + part.astype(total.dtype), start, 2)


_core.defvjp(_forward, _backward)
