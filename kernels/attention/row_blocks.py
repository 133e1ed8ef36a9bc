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

from kernels.attention.places import Places
from kernels.attention.saved import of_rows, saved
from kernels.attention.skew import skew, unskew
from kernels.attention.spec import Pattern
from kernels.attention.term import Entries, Term, score_entries_only

MAX_KEYS = 4096
IN_FLIGHT = 2
"""Blocks that may be worked on at once: enough for two cores, and memory for no more."""


def row_blocks(
    q: Array,
    k: Array,
    v: Array,
    pattern: Pattern,
    term: Term | None,
    q_at: Places,
    k_at: Places,
) -> tuple[Array, Array]:
    """Return (out, lse); see `kernels.attention.attention`.

    Raises:
        NotImplementedError: positions are given, there are more than `MAX_KEYS` keys, or the term
            isn't one of the distance alone, or adds to the values.
        ValueError: the term's tables fit neither the heads nor the dim.
    """
    if q_at.positions is not None:
        raise NotImplementedError("row_blocks serves consecutive positions only")
    if k.shape[2] > MAX_KEYS:
        raise NotImplementedError(
            f"row_blocks unrolls its blocks, so it serves up to {MAX_KEYS} keys, not {k.shape[2]}"
        )
    q_len, k_len = q.shape[2], k.shape[2]
    said = score_entries_only("row_blocks", term, _distances(pattern, q_len, k_len), q)
    entries = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (q.shape[1], *x.shape[1:])).astype(jnp.float32), said
    )
    documents = None
    if q_at.segments is not None and k_at.segments is not None:
        documents = tuple(
            jnp.broadcast_to(x, (q.shape[0], x.shape[1])) for x in (q_at.segments, k_at.segments)
        )
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    return _core(pattern, q, k, v, entries, documents)


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


Documents = tuple[Array, Array] | None
"""The segments of queries and keys: [batch, q_len] and [batch, k_len], or [q_len] and [k_len]."""


def _scores(
    plan: tuple[Pattern, int], block: Block, q: Array, k_t: Array, head: Entries, row: Documents
) -> Array:
    """Return the masked scores [rows, high - low] of one block of one head and batch row."""
    pattern, offset = plan
    scores = q @ k_t[:, block.low : block.high]
    band = slice(block.first, block.first + block.width)
    if head.embeddings is not None or head.bias is not None:
        by_distance = jnp.zeros((block.rows, block.width))
        if head.embeddings is not None:
            by_distance = q @ head.embeddings[:, band]
        if head.bias is not None:
            by_distance += head.bias[band]
        scores += skew(by_distance, block.high - block.low)
    if block.partial:
        q_pos = offset + block.start + lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        k_pos = block.low + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        scores = jnp.where(pattern.allows(q_pos, k_pos), scores, -jnp.inf)
    if row is not None:
        ours = row[0][block.start : block.start + block.rows, None]
        scores = jnp.where(ours == row[1][None, block.low : block.high], scores, -jnp.inf)
    return scores


def _of(index: Array, tree):
    """Return what the heads or rows of a tree hold at an index."""
    return jax.tree.map(lambda x: x[index], tree)


def _add_band(total: Entries, band: slice, q_t: Array, d_band: Array) -> Entries:
    """Return the gradient of a head's transposed entries with that of one block added."""
    embeddings, bias = total.embeddings, total.bias
    if embeddings is not None:
        embeddings = embeddings.at[:, band].add(q_t @ d_band)
    if bias is not None:
        bias = bias.at[band].add(d_band.sum(axis=0))
    return Entries(embeddings, bias)


def _transposed(entries: Entries) -> Entries:
    table = entries.embeddings
    return entries._replace(embeddings=None if table is None else table.swapaxes(1, 2))


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
    pattern: Pattern, q: Array, k: Array, v: Array, entries: Entries, documents: Documents
) -> tuple[Array, Array]:
    return _forward(pattern, q, k, v, entries, documents)[0]


@partial(jax.jit, static_argnums=0)  # traced once, however many layers call it
def _forward(pattern: Pattern, q: Array, k: Array, v: Array, entries: Entries, documents):
    batch, heads, q_len, _ = q.shape
    kv_heads, k_len = k.shape[1:3]
    blocks, offset = _plan(pattern, q_len, k_len), k_len - q_len
    k_t, entries_t = k.swapaxes(2, 3), _transposed(entries)

    def one(index):
        b, h = index // heads, index % heads
        kv = h // (heads // kv_heads)
        q_i, k_t_i, v_i = q[b, h], k_t[b, kv], v[b, kv]
        head, row = _of(h, entries_t), _of(b, documents)
        outs, lses = [], []
        for block in blocks:
            rows = _after(outs, q_i[block.start : block.start + block.rows])
            scores = _scores((pattern, offset), block, rows, k_t_i, head, row)
            top = jnp.max(scores, axis=-1, keepdims=True)
            top = jnp.where(jnp.isfinite(top), top, 0.0)
            weights = jnp.exp(scores - top)
            total = weights.sum(axis=-1, keepdims=True)
            safe = jnp.where(total == 0, 1.0, total)
            outs.append((weights @ v_i[block.low : block.high]) / safe)
            lses.append(jnp.where(total == 0, -jnp.inf, top + jnp.log(safe))[:, 0])
        return jnp.concatenate(outs), jnp.concatenate(lses)

    out, lse = lax.map(one, jnp.arange(batch * heads))
    out, lse = saved(out.reshape(q.shape), lse.reshape(q.shape[:3]))
    return (out, lse), (q, k, v, entries, documents, out, lse)


@partial(jax.jit, static_argnums=0)
def _backward(pattern: Pattern, residuals, cotangents):
    q, k, v, entries, documents, out, lse = residuals
    d_out, d_lse = cotangents
    batch, heads, q_len, _ = q.shape
    kv_heads, k_len = k.shape[1:3]
    group = heads // kv_heads
    blocks, offset = _plan(pattern, q_len, k_len), k_len - q_len
    lse, delta = of_rows(out, lse, d_out, d_lse)
    q_t, k_t, v_t, d_out_t = (x.swapaxes(2, 3) for x in (q, k, v, d_out))
    entries_t = _transposed(entries)

    def one_row(h, d_head, b):
        kv, head, row = h // group, _of(h, entries_t), _of(b, documents)
        dq: list[Array] = []
        dk_t, dv_t = jnp.zeros_like(k_t[0, 0]), jnp.zeros_like(v_t[0, 0])
        for block in blocks:
            rows = slice(block.start, block.start + block.rows)
            columns = slice(block.low, block.high)
            band = slice(block.first, block.first + block.width)
            q_rows = _after(dq, q[b, h, rows])
            scores = _scores((pattern, offset), block, q_rows, k_t[b, kv], head, row)
            weights = jnp.exp(scores - lse[b, h, rows, None])
            d_weights = d_out[b, h, rows] @ v_t[b, kv][:, columns]
            d_scores = weights * (d_weights - delta[b, h, rows, None])
            dv_t = dv_t.at[:, columns].add(d_out_t[b, h][:, rows] @ weights)
            dk_t = dk_t.at[:, columns].add(q_t[b, h][:, rows] @ d_scores)
            dq_rows = d_scores @ k[b, kv, columns]
            d_band = unskew(d_scores, block.width)
            if entries.embeddings is not None:
                dq_rows += d_band @ entries.embeddings[h, band]
            d_head = _add_band(d_head, band, q_t[b, h][:, rows], d_band)
            dq.append(dq_rows)
        return d_head, (jnp.concatenate(dq), dk_t, dv_t)

    def one_head(_, h):
        zero = jax.tree.map(lambda x: jnp.zeros_like(x[0]), entries_t)
        d_head, grads = lax.scan(partial(one_row, h), zero, jnp.arange(batch))
        return None, (d_head, *grads)

    _, (d_entries_t, dq, dk_t, dv_t) = lax.scan(one_head, None, jnp.arange(heads))
    dq = dq.swapaxes(0, 1)
    dk, dv = (
        x.reshape(kv_heads, group, *x.shape[1:]).sum(axis=1).transpose(1, 0, 3, 2)
        for x in (dk_t, dv_t)
    )
    return dq, dk, dv, _transposed(d_entries_t), None


_core.defvjp(_forward, _backward)
