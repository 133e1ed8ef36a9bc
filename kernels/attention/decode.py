"""A few new queries over a cache: one dense score matrix, which is small because q_len is."""

import jax.numpy as jnp
from einops import rearrange
from jax import Array

from kernels.attention.spec import Pattern, Term

MAX_QUERIES = 8


def decode(
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
        NotImplementedError: positions are missing, or there are more than `MAX_QUERIES` queries.
    """
    if q_pos is None or k_pos is None:
        raise NotImplementedError("decode serves calls with explicit positions")
    if q.shape[2] > MAX_QUERIES:
        raise NotImplementedError(f"decode serves up to {MAX_QUERIES} queries, not {q.shape[2]}")
    kv_heads = k.shape[1]
    grouped = rearrange(q, "b (kv group) q d -> b kv (group q) d", kv=kv_heads)
    scores = jnp.einsum("bkqd,bkjd->bkqj", grouped, k, preferred_element_type=jnp.float32)
    scores = rearrange(scores, "b kv (group q) j -> b (kv group) q j", q=q.shape[2])
    if term is not None:
        scores += term.dense(q, q_pos, k_pos)
    i, j = q_pos[:, None, :, None], k_pos[:, None, None, :]
    allowed = pattern.allows(i, j) & (i >= 0) & (j >= 0)
    scores = jnp.where(allowed, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    safe = jnp.where(total > 0, total, 1.0)
    weights = rearrange(weights / safe, "b (kv group) q j -> b kv (group q) j", kv=kv_heads)
    out = jnp.einsum(
        "bkqj,bkjd->bkqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    out = rearrange(out, "b kv (group q) d -> b (kv group) q d", q=q.shape[2])
    return out, jnp.where(total > 0, top + jnp.log(safe), -jnp.inf)[..., 0]
