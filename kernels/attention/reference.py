"""Textbook attention in float32: the definition that every other implementation is held to."""

import jax.numpy as jnp
from einops import repeat
from jax import Array

from kernels.attention.spec import Pattern, Term


def reference(
    q: Array,
    k: Array,
    v: Array,
    pattern: Pattern,
    term: Term | None,
    q_pos: Array | None,
    k_pos: Array | None,
) -> tuple[Array, Array]:
    """Return (out, lse) of `softmax(q k^T + term) v` over the pairs that `pattern` allows."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k = repeat(k, "batch kv_heads k_len dim -> batch (kv_heads group) k_len dim", group=group)
    v = repeat(v, "batch kv_heads k_len dim -> batch (kv_heads group) k_len dim", group=group)
    if q_pos is None or k_pos is None:
        k_pos = jnp.arange(k.shape[2])[None]
        q_pos = k_pos[:, k.shape[2] - q.shape[2] :]

    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest")
    if term is not None:
        scores += term.dense(q, q_pos, k_pos)
    i, j = q_pos[:, None, :, None], k_pos[:, None, None, :]
    allowed = pattern.allows(i, j) & (i >= 0) & (j >= 0)
    scores = jnp.where(allowed, scores, -jnp.inf)

    top = jnp.max(scores, axis=-1, keepdims=True, initial=-1e30)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    empty = total == 0
    safe = jnp.where(empty, 1.0, total)
    out = jnp.einsum("bhqk,bhkd->bhqd", weights / safe, v, precision="highest")
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(safe))[..., 0]
    return out, lse
