"""Textbook attention in float32: the definition that every other implementation is held to."""

import jax.numpy as jnp
from einops import repeat
from jax import Array

from kernels.attention.mask import mask
from kernels.attention.places import Places, last_of
from kernels.attention.spec import Pattern
from kernels.attention.term import Term


def reference(
    q: Array,
    k: Array,
    v: Array,
    pattern: Pattern,
    term: Term | None,
    q_at: Places,
    k_at: Places,
) -> tuple[Array, Array]:
    """Return (out, lse) of `softmax(q k^T + term) v` over the pairs that `pattern` allows."""
    group = q.shape[1] // k.shape[1]
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    k = repeat(k, "batch kv_heads k_len dim -> batch (kv_heads group) k_len dim", group=group)
    v = repeat(v, "batch kv_heads k_len dim -> batch (kv_heads group) k_len dim", group=group)
    q_at, k_at = last_of(q.shape[2], q_at, k.shape[2], k_at)

    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest")
    if term is not None:
        scores += term.scores(q, q_at, k_at)
    scores = jnp.where(mask(pattern, q_at, k_at), scores, -jnp.inf)

    top = jnp.max(scores, axis=-1, keepdims=True, initial=-1e30)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    empty = total == 0
    safe = jnp.where(empty, 1.0, total)
    out = jnp.einsum("bhqk,bhkd->bhqd", weights / safe, v, precision="highest")
    if term is not None and term.adds_values:
        out += term.values(weights / safe, q_at, k_at)
    lse = jnp.where(empty, -jnp.inf, top + jnp.log(safe))[..., 0]
    return out, lse
