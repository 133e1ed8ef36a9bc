"""Attention for CPUs: one (batch row, head) at a time, in blocks of query rows over live keys.

A scan over heads and batch rows keeps every product two-dimensional and its blocks in the L2
cache; inside, the row blocks are unrolled, so a block touches exactly the columns that its pattern
leaves, and a learned relative term is one more matrix product and a view (`skew`). The backward
pass recomputes the probabilities from the saved logsumexp. Nothing of size q_len x k_len is kept.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.ad_checkpoint import checkpoint_name

from kernels.attention.skew import skew, unskew
from kernels.attention.spec import OUTPUT, Pattern, Term

MAX_KEYS = 4096
IN_FLIGHT = 2
"""Blocks that may be worked on at once: enough for two cores, and memory for no more."""


def row_blocks(
    q: Array,
    k: Array,
    v: Array,
    pattern: Pattern,
    term: Term | None,
    q_pos: Array | None,
    k_pos: Array | None,
) -> tuple[Array, Array]:
    """Return (out, lse); see `kernels.attention.attention`.

    Raises:
        NotImplementedError: positions are given, there are more than `MAX_KEYS` keys, or the term
            isn't a table of embeddings by distance.
    """
    if q_pos is not None or k_pos is not None:
        raise NotImplementedError("row_blocks serves consecutive positions only")
    if k.shape[2] > MAX_KEYS:
        raise NotImplementedError(
            f"row_blocks unrolls its blocks, so it serves up to {MAX_KEYS} keys, not {k.shape[2]}"
        )
    q_len, k_len = q.shape[2], k.shape[2]
    table = None
    if term is not None:
        embeddings = term.by_distance(_distances(pattern, q_len, k_len))
        if embeddings is None:
            raise NotImplementedError(
                f"{type(term).__name__} is not a table by distance, which row_blocks needs"
            )
        table = jnp.broadcast_to(embeddings, (q.shape[1], *embeddings.shape[1:]))
        table = table.astype(jnp.float32)
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return _core(pattern, q, k, v, table)


class Block(NamedTuple):
    """Query rows [start, start + rows) over key columns [low, high)."""

    start: int
    rows: int
    low: int
    high: int
    partial: bool
    first: int
    """Where the block's band begins in the table, which lists distances from the largest down."""
    width: int
    """How many of the table's embeddings the band takes."""


@lru_cache(maxsize=256)
def _plan(pattern: Pattern, q_len: int, k_len: int) -> tuple[Block, ...]:
    size = 128 if k_len <= 2048 else 256
    offset = k_len - q_len
    blocks = []
    for start in range(0, q_len, size):
        rows = min(size, q_len - start)
        q_pos = offset + start + np.arange(rows)[:, None]
        k_pos = np.arange(k_len)[None, :]
        allowed = np.broadcast_to(pattern.allows(q_pos, k_pos), (rows, k_len))
        live = np.flatnonzero(allowed.any(axis=0))
        low, high = (int(live[0]), int(live[-1]) + 1) if live.size else (0, 1)
        least = int((q_pos - k_pos)[allowed].min()) if live.size else 0
        largest = offset + start + rows - 1 - low
        width = max(largest - least + 1, high - low) + 1
        blocks.append(
            Block(
                start=start,
                rows=rows,
                low=low,
                high=high,
                partial=not allowed[:, low:high].all(),
                first=(k_len - 1) - largest,
                width=width,
            )
        )
    return tuple(blocks)


def _distances(pattern: Pattern, q_len: int, k_len: int) -> np.ndarray:
    length = max(block.first + block.width for block in _plan(pattern, q_len, k_len))
    return k_len - 1 - np.arange(length)


def _scores(
    pattern: Pattern, block: Block, offset: int, q: Array, k_t: Array, table_t: Array | None
) -> Array:
    """Return the masked scores [rows, high - low] of one block."""
    scores = q @ k_t[:, block.low : block.high]
    if table_t is not None:
        band = q @ table_t[:, block.first : block.first + block.width]
        scores += skew(band, block.high - block.low)
    if block.partial:
        q_pos = offset + block.start + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        k_pos = block.low + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        scores = jnp.where(pattern.allows(q_pos, k_pos), scores, -jnp.inf)
    return scores


def _after(done: list[Array], rows: Array) -> Array:
    """Return `rows`, but not before the block `IN_FLIGHT` places back is done.

    XLA on a CPU drops optimization barriers, so this is a dependency that it has to keep: a zero
    that would be NaN if that block's result were.
    """
    if len(done) < IN_FLIGHT:
        return rows
    return rows + 0.0 * done[-IN_FLIGHT][:1, :1]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _core(
    pattern: Pattern, q: Array, k: Array, v: Array, table: Array | None
) -> tuple[Array, Array]:
    return _forward(pattern, q, k, v, table)[0]


@partial(jax.jit, static_argnums=0)  # traced once, however many layers call it
def _forward(pattern: Pattern, q: Array, k: Array, v: Array, table: Array | None):
    batch, heads, q_len, _ = q.shape
    kv_heads, k_len = k.shape[1:3]
    blocks, offset = _plan(pattern, q_len, k_len), k_len - q_len
    k_t = k.swapaxes(2, 3)
    table_t = None if table is None else table.swapaxes(1, 2)

    def one(index):
        b, h = index // heads, index % heads
        kv = h // (heads // kv_heads)
        q_i, k_t_i, v_i = q[b, h], k_t[b, kv], v[b, kv]
        table_t_i = None if table_t is None else table_t[h]
        outs, lses = [], []
        for block in blocks:
            rows = _after(outs, q_i[block.start : block.start + block.rows])
            scores = _scores(pattern, block, offset, rows, k_t_i, table_t_i)
            top = jnp.max(scores, axis=-1, keepdims=True)
            top = jnp.where(jnp.isfinite(top), top, 0.0)
            weights = jnp.exp(scores - top)
            total = weights.sum(axis=-1, keepdims=True)
            safe = jnp.where(total > 0, total, 1.0)
            outs.append((weights @ v_i[block.low : block.high]) / safe)
            lses.append(jnp.where(total > 0, top + jnp.log(safe), -jnp.inf)[:, 0])
        return jnp.concatenate(outs), jnp.concatenate(lses)

    out, lse = lax.map(one, jnp.arange(batch * heads))
    out = checkpoint_name(out.reshape(q.shape), OUTPUT)
    lse = checkpoint_name(lse.reshape(q.shape[:3]), OUTPUT)
    return (out, lse), (q, k, v, table, out, lse)


@partial(jax.jit, static_argnums=0)
def _backward(pattern: Pattern, saved, cotangents):
    q, k, v, table, out, lse = saved
    d_out, d_lse = cotangents
    batch, heads, q_len, _ = q.shape
    kv_heads, k_len = k.shape[1:3]
    group = heads // kv_heads
    blocks, offset = _plan(pattern, q_len, k_len), k_len - q_len
    delta = (d_out * out).sum(axis=-1) - d_lse
    lse = jnp.where(jnp.isfinite(lse), lse, 0.0)
    q_t, k_t, v_t, d_out_t = (x.swapaxes(2, 3) for x in (q, k, v, d_out))
    table_t = None if table is None else table.swapaxes(1, 2)

    def one_row(h, d_table_t, b):
        kv = h // group
        dq: list[Array] = []
        dk_t, dv_t = jnp.zeros_like(k_t[0, 0]), jnp.zeros_like(v_t[0, 0])
        for block in blocks:
            rows = slice(block.start, block.start + block.rows)
            columns = slice(block.low, block.high)
            band = slice(block.first, block.first + block.width)
            table_t_h = None if table_t is None else table_t[h]
            q_rows = q[b, h, rows]
            scores = _scores(pattern, block, offset, _after(dq, q_rows), k_t[b, kv], table_t_h)
            weights = jnp.exp(scores - lse[b, h, rows, None])
            d_weights = d_out[b, h, rows] @ v_t[b, kv][:, columns]
            d_scores = weights * (d_weights - delta[b, h, rows, None])
            dv_t = dv_t.at[:, columns].add(d_out_t[b, h][:, rows] @ weights)
            dk_t = dk_t.at[:, columns].add(q_t[b, h][:, rows] @ d_scores)
            dq_rows = d_scores @ k[b, kv, columns]
            if table is not None:
                d_band = unskew(d_scores, block.width)
                dq_rows += d_band @ table[h, band]
                d_table_t = d_table_t.at[:, band].add(q_t[b, h][:, rows] @ d_band)
            dq.append(dq_rows)
        return d_table_t, (jnp.concatenate(dq), dk_t, dv_t)

    def one_head(_, h):
        zero = None if table_t is None else jnp.zeros_like(table_t[0])
        d_table_t, grads = lax.scan(partial(one_row, h), zero, jnp.arange(batch))
        return None, (d_table_t, *grads)

    _, (d_table_t, dq, dk_t, dv_t) = lax.scan(one_head, None, jnp.arange(heads))
    dq = dq.swapaxes(0, 1)
    dk, dv = (
        x.reshape(kv_heads, group, *x.shape[1:]).sum(axis=1).transpose(1, 0, 3, 2)
        for x in (dk_t, dv_t)
    )
    return dq, dk, dv, None if d_table_t is None else d_table_t.swapaxes(1, 2)


_core.defvjp(_forward, _backward)
