"""A few new queries over a cache: one dense score matrix, which is small because q_len is.

A term multiplies each query with its table once and picks a number for each slot. Adding the
picked embeddings to the keys instead, `q . (k + e)`, would write a second cache for each row of the
batch. Few long sums over keys don't idle a GPU: XLA splits them itself, and better than a softmax
in pieces that is merged, which hides from it that the sum over keys is a matrix product.
"""

import jax.numpy as jnp
from einops import rearrange
from jax import Array

from kernels.attention.mask import mask
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.attention.term import Term

MAX_QUERIES = 8


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
    top = jnp.max(scores, axis=-1, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    safe = jnp.where(total > 0, total, 1.0)
    weights /= safe
    shared = rearrange(weights, "b (kv group) q j -> b kv (group q) j", kv=kv_heads)
    out = jnp.einsum(
        "bkqj,bkjd->bkqd", shared.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    out = rearrange(out, "b kv (group q) d -> b (kv group) q d", q=q.shape[2])
    if term is not None and term.adds_values:
        out += term.values(weights, q_at, k_at)
    return out, jnp.where(total > 0, top + jnp.log(safe), -jnp.inf)[..., 0]
