"""Attention over the few entries that a search found, differentiable in what asks alone."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import Array
from jaxtyping import Float, Int

from kernels.attention.merge import merge_over
from kernels.attention.padding import pad
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.topk import nearest
from longctx.attention.memory.parts import WHOLE, on_parts, slots_of
from longctx.attention.memory.store import Entries, Store

ROWS = 512
"""Queries whose entries exist at a time, forward and backward."""


class Search(NamedTuple):
    """What each query looks for."""

    count: int
    """How many entries."""
    pattern: Pattern
    """Among which."""
    recall: float
    """The share of them that is found, in expectation; 1 is exact."""


def read(
    q: Float[Array, "batch heads len dim"],
    scale: Float[Array, "heads 1 1"],
    store: Store | None,
    new: Entries | None,
    search: Search,
    q_at: Places,
) -> tuple[Float[Array, "batch heads len dim"], Float[Array, "batch heads len"]]:
    """Return float32 (out, lse) of attention, with scores `scale * (q . k)`, to what is nearest.

    What is read is the store, and new entries beside it. Where the slots of the store are divided
    over devices, each searches its part, and what all found is merged.
    """
    if store is None or store.axis is None:
        sources = [source for source in (store and store.entries, new) if source is not None]
        return _read(q, scale, sources, q_at, search)
    axis, more = store.axis, [] if new is None else [new]

    def read_part(q: Array, scale: Array, stored: Entries, more: list[Entries], q_at: Places):
        more = [_of_first_device(entries, axis) for entries in more]
        return _read(q, scale, [stored, *more], q_at, search, axis)

    specs = (WHOLE, WHOLE, slots_of(store.entries, axis), WHOLE, WHOLE)
    return on_parts(axis, read_part, specs, WHOLE)(q, scale, store.entries, more, q_at)


def _read(
    q: Array,
    scale: Array,
    sources: Sequence[Entries],
    q_at: Places,
    search: Search,
    axis: str | None = None,
) -> tuple[Array, Array]:
    scores, index = retrieve(q, sources, search, q_at)
    if axis is None:
        return attend(scale * q, sources, index)
    every = jax.lax.all_gather(scores, axis, axis=3, tiled=True)
    device = jax.lax.top_k(every, search.count)[1] // search.count
    ours = (device == jax.lax.axis_index(axis)).sum(axis=-1, keepdims=True)
    index = jnp.where(jnp.arange(search.count) < ours, index, -1)
    return merge_over(axis, *attend(scale * q, sources, index))


def _of_first_device(entries: Entries, axis: str) -> Entries:
    """Return what all devices have, empty on all but the first, so that it is found once."""
    assert entries.at.positions is not None
    positions = jnp.where(jax.lax.axis_index(axis) == 0, entries.at.positions, -1)
    return replace(entries, at=entries.at._replace(positions=positions))


def retrieve(
    q: Float[Array, "batch heads len dim"],
    sources: Sequence[Entries],
    search: Search,
    q_at: Places,
) -> tuple[Float[Array, "batch heads len count"], Int[Array, "batch heads len count"]]:
    """Return the scores, falling, and which entries of all sources have them.

    An index counts the entries of the sources one after the other; -1 is none.
    """
    scores, indices, before = [], [], 0
    for entries in sources:
        score, index = nearest(
            q, entries.k, count=search.count, pattern=search.pattern, q_at=q_at, k_at=entries.at,
            k_scale=entries.k_scale, recall=search.recall,
        )  # fmt: skip
        scores.append(score)
        indices.append(jnp.where(index < 0, -1, index + before))
        before += entries.k.shape[2]
    if len(sources) == 1:
        return scores[0], indices[0]
    best, place = jax.lax.top_k(jnp.concatenate(scores, axis=-1), search.count)
    return best, jnp.take_along_axis(jnp.concatenate(indices, axis=-1), place, axis=-1)


def attend(
    q: Float[Array, "batch heads len dim"],
    sources: Sequence[Entries],
    index: Int[Array, "batch heads len count"],
) -> tuple[Float[Array, "batch heads len dim"], Float[Array, "batch heads len"]]:
    """Return float32 (out, lse) of softmax attention over the entries of each query alone.

    A query without an entry gets 0 and -inf. Of the entries themselves only `ROWS` queries' are
    in memory at a time; the backward pass takes them again.
    """
    return _attend(q, tuple(sources), index, min(ROWS, q.shape[2]))


# Jitted, so that calls outside of a jitted function do not compile the loop each time.
@partial(jax.jit, static_argnames="rows")
def _attend(q: Array, sources: tuple[Entries, ...], index: Array, rows: int) -> tuple[Array, Array]:
    length = q.shape[2]
    cut = partial(rearrange, pattern="b h (i q) d -> i b h q d", q=rows)
    blocks = cut(pad(q, 2, rows)), cut(pad(index, 2, rows, -1))
    block = jax.checkpoint(partial(_attend_block, sources))
    out, lse = jax.lax.map(lambda args: block(*args), blocks)
    out = rearrange(out, "i b h q d -> b h (i q) d")[:, :, :length]
    return out, rearrange(lse, "i b h q -> b h (i q)")[:, :, :length]


def _attend_block(sources: Sequence[Entries], q: Array, index: Array) -> tuple[Array, Array]:
    k, v = _gathered(sources, index)
    there = index >= 0
    scores = jnp.einsum("bhqd,bhqcd->bhqc", q.astype(jnp.float32), k, precision="highest")
    top = jnp.where(there, scores, -jnp.inf).max(axis=-1, keepdims=True)
    top = jax.lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    weights = jnp.where(there, jnp.exp(jnp.where(there, scores - top, 0.0)), 0.0)
    total = weights.sum(axis=-1)
    safe = jnp.where(total > 0, total, 1.0)
    out = jnp.einsum("bhqc,bhqcd->bhqd", weights / safe[..., None], v, precision="highest")
    return out, jnp.where(total > 0, top[..., 0] + jnp.log(safe), -jnp.inf)


def _gathered(sources: Sequence[Entries], index: Array) -> tuple[Array, Array]:
    """Return the keys and values [batch heads len count dim] that the indices mean."""
    kv_heads, heads = sources[0].k.shape[1], index.shape[1]
    flat = rearrange(index, "b (kv group) q c -> b kv (group q c)", kv=kv_heads)
    k = v = jnp.zeros(())
    before = 0
    for entries in sources:
        slots = entries.k.shape[2]
        here = (flat >= before) & (flat < before + slots)
        found = entries.take(jnp.where(here, flat - before, 0))
        k, v = (
            jnp.where(here[..., None], new, old) for new, old in zip(found, (k, v), strict=True)
        )
        before += slots
    whole = partial(
        rearrange, pattern="b kv (group q c) d -> b (kv group) q c d",
        group=heads // kv_heads, q=index.shape[2],
    )  # fmt: skip
    return whole(k), whole(v)
