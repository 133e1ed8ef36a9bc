"""Textbook search for the nearest keys: all scores at once, then the largest of them."""

import jax.numpy as jnp
from einops import repeat
from jax import Array, lax

from kernels.attention.mask import mask
from kernels.attention.places import Places
from kernels.attention.spec import Pattern


def reference(
    q: Array,
    k: Array,
    k_scale: Array | None,
    count: int,
    pattern: Pattern,
    q_at: Places,
    k_at: Places,
    recall: float,
) -> tuple[Array, Array]:
    """Return (scores, index) of the `count` largest `k_scale * (q . k)`; exact at any recall."""
    group = q.shape[1] // k.shape[1]
    q, k = q.astype(jnp.float32), k.astype(jnp.float32)
    k = repeat(k, "batch kv_heads k_len dim -> batch (kv_heads group) k_len dim", group=group)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest")
    if k_scale is not None:
        scores *= repeat(k_scale, "batch kv k_len -> batch (kv group) 1 k_len", group=group)
    scores = jnp.where(mask(pattern, q_at, k_at), scores, -jnp.inf)
    missing = max(0, count - k.shape[2])
    scores = jnp.pad(scores, [(0, 0)] * 3 + [(0, missing)], constant_values=-jnp.inf)
    scores, index = lax.top_k(scores, count)
    return scores, jnp.where(scores == -jnp.inf, -1, index)
