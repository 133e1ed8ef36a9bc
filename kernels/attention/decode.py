"""A few new queries over a cache: one dense score matrix, which is small because q_len is.

A term multiplies each query with its table once and picks a number for each slot. Adding the
picked embeddings to the keys instead, `q . (k + e)`, would write a second cache for each row of the
batch: on CPUs that took 1.2 to 7 times as long.
"""

import jax.numpy as jnp
from einops import rearrange
from jax import Array, lax

from kernels.attention.mask import mask
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.attention.term import Term
from kernels.platform import platform

MAX_QUERIES = 8
PROGRAMS = 256
"""How many sums over keys keep a GPU busy: about two for each of its multiprocessors."""
MIN_KEYS = 256
"""What is worth a piece of its own."""


def decode(
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
        NotImplementedError: positions are missing, or there are more than `MAX_QUERIES` queries.
    """
    if q_at.positions is None:
        raise NotImplementedError("decode serves calls with explicit positions")
    if q.shape[2] > MAX_QUERIES:
        raise NotImplementedError(f"decode serves up to {MAX_QUERIES} queries, not {q.shape[2]}")
    kv_heads = k.shape[1]
    grouped = rearrange(q, "b (kv group) q d -> b kv (group q) d", kv=kv_heads)
    scores = jnp.einsum("bkqd,bkjd->bkqj", grouped, k, preferred_element_type=jnp.float32)
    scores = rearrange(scores, "b kv (group q) j -> b (kv group) q j", q=q.shape[2])
    if term is not None:
        scores += term.scores(q, q_at, k_at)
    scores = jnp.where(mask(pattern, q_at, k_at), scores, -jnp.inf)
    scores = rearrange(scores, "b (kv group) q j -> b kv (group q) j", kv=kv_heads)
    weights, out, lse = _weighted(scores, v, _splits(k.shape[0] * kv_heads, k.shape[2]))
    weights, out, lse = (
        rearrange(x, "b kv (group q) ... -> b (kv group) q ...", q=q.shape[2])
        for x in (weights, out, lse)
    )
    if term is not None and term.adds_values:
        out += term.values(weights, q_at, k_at)
    return out, lse


def _splits(rows: int, k_len: int) -> int:
    """Return in how many pieces to add up `rows` sums over all keys.

    A GPU gives each sum to one multiprocessor, so few long sums leave most of it idle; a TPU's core
    and a CPU's do one after the other anyway. Pieces are equal, so their number divides the length.
    """
    if platform() != "gpu":
        return 1
    wanted = min(PROGRAMS // rows, k_len // MIN_KEYS)
    return max((n for n in range(1, wanted + 1) if k_len % n == 0), default=1)


def _weighted(scores: Array, v: Array, splits: int) -> tuple[Array, Array, Array]:
    """Return the softmax [b kv q j], the values that it weighs [b kv q d], and the logsumexp.

    Each piece of the keys has its own softmax; the sums of all are brought to one scale
    (Dao et al. 2023, Flash-Decoding).
    """
    scores = rearrange(scores, "b kv q (s j) -> b kv s q j", s=splits)
    v = rearrange(v, "b kv (s j) d -> b kv s j d", s=splits)
    tops = lax.stop_gradient(scores.max(axis=-1))  # any other would give the same results
    top = tops.max(axis=2, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(tops), tops, 0.0)[..., None])
    sums = jnp.einsum(
        "bksqj,bksjd->bksqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    scale = jnp.exp(tops - top)
    total = (weights.sum(axis=-1) * scale).sum(axis=2)
    safe = jnp.where(total > 0, total, 1.0)
    out = (sums * scale[..., None]).sum(axis=2) / safe[..., None]
    weights *= (scale / safe[:, :, None])[..., None]
    lse = jnp.where(total > 0, top[:, :, 0] + jnp.log(safe), -jnp.inf)
    return rearrange(weights, "b kv s q j -> b kv q (s j)"), out, lse
