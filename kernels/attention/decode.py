"""A few new queries over a cache: one dense score matrix, which is small because q_len is.

A term multiplies each query with its table once and picks a number for each slot. Adding the
picked embeddings to the keys instead, `q . (k + e)`, would write a second cache for each row of the
batch. Few long sums over keys are not split here for a GPU: XLA splits them itself, as matrix
products, which it does not make of a softmax in pieces that are merged (compiled for an H200).
"""

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jax import Array, lax

from kernels.attention.lookup import lookup
from kernels.attention.mask import mask
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.attention.term import DistanceTerm, Term, band
from kernels.platform import platform

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
        scores += _summand(term, q, q_at, k_at)
    scores = jnp.where(mask(pattern, q_at, k_at), scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weights = jnp.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True)
    safe = jnp.where(total == 0, 1.0, total)  # a NaN stays one
    weights /= safe
    shared = rearrange(weights, "b (kv group) q j -> b kv (group q) j", kv=kv_heads)
    out = jnp.einsum(
        "bkqj,bkjd->bkqd", shared.astype(v.dtype), v, preferred_element_type=jnp.float32
    )
    out = rearrange(out, "b kv (group q) d -> b (kv group) q d", q=q.shape[2])
    if term is not None and term.adds_values:
        out += term.values(weights, q_at, k_at)
    return out, jnp.where(total == 0, -jnp.inf, top + jnp.log(safe))[..., 0]


def _summand(term: Term, q: Array, q_at: Places, k_at: Places) -> Array:
    """Return `term.scores`; where gathers are slow, without one if the slots allow that.

    Caches keep token p in slot p modulo the number of slots. Then the distances of one query fall
    from slot to slot, and begin again from the top at one place: a slice of them written twice.
    """
    if platform() != "tpu" or q.shape[2] > 1 or not isinstance(term, DistanceTerm):
        return term.scores(q, q_at, k_at)
    q_pos, k_pos = q_at.positions, k_at.positions
    assert q_pos is not None
    assert k_pos is not None
    slots = k_pos.shape[1]
    in_turn = k_pos == q_pos - (q_pos - jnp.arange(slots)) % slots
    unseen = (k_pos < 0) | (q_pos < 0)
    return lax.cond(
        jnp.all(in_turn | unseen),
        lambda term, q: _slices(term, q, q_pos, slots),
        lambda term, q: jnp.broadcast_to(term.scores(q, q_at, k_at), (*q.shape[:3], slots)),
        term,
        q,
    )


def _slices(term: DistanceTerm, q: Array, q_pos: Array, slots: int) -> Array:
    """Return the summand for slot s at distance `(q_pos - s) % slots`."""
    least, largest = term.span
    entries = term.by_distance(np.arange(least, largest + 1))
    by_entry = jnp.zeros((1, 1, 1, 1))
    if entries.embeddings is not None:
        by_entry += band(q, entries.embeddings)
    if entries.bias is not None:
        by_entry += entries.bias[None, :, None]
    falling = np.clip(slots - 1 - np.arange(slots), least, largest) - least
    by_distance = jnp.broadcast_to(lookup(by_entry, falling, axis=-1), (*q.shape[:3], slots))
    twice = jnp.concatenate([by_distance, by_distance], axis=-1)
    start = jnp.broadcast_to((-1 - q_pos[:, 0]) % slots, q.shape[:1])
    return jax.vmap(lambda row, at: lax.dynamic_slice_in_dim(row, at, slots, -1))(twice, start)
