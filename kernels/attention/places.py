"""Where tokens stand: what decides, besides content, which pairs talk and what a pair scores."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Int


class Places(NamedTuple):
    """Each token's place; `rows` is the batch or 1, and every part may be missing."""

    positions: Int[Array, "rows len"] | None = None
    """Rise by one per token of a document; -1 is padding or an empty slot, which nobody sees.

    None: documents start at 0 and tokens are consecutive, which lets a kernel know distances while
    compiling.
    """
    segments: Int[Array, "rows len"] | None = None
    """The document of each token, where several are packed into a row; None is one document."""
    coordinates: Int[Array, "rows len axes"] | None = None
    """What else places a token, e.g. its onset and its pitch; the tokenizer knows."""


def resolved(at: Places, length: int) -> Places:
    """Return the places with positions: counted from 0 in each document if they are not given."""
    if at.positions is not None:
        return at
    index = jnp.arange(length, dtype=jnp.int32)[None]
    if at.segments is None:
        return at._replace(positions=index)
    first = at.segments != jnp.pad(at.segments, [(0, 0), (1, 0)], constant_values=-2)[:, :-1]
    start = lax.cummax(jnp.where(first, index, 0), axis=1)
    return at._replace(positions=jnp.where(at.segments >= 0, index - start, -1))


def last_of(q_len: int, q_at: Places, k_len: int, k_at: Places) -> tuple[Places, Places]:
    """Return both with positions: unless given, keys count from 0 and queries are the last."""
    if q_at.positions is not None:
        return q_at, k_at
    index = jnp.arange(k_len, dtype=jnp.int32)[None]
    return q_at._replace(positions=index[:, k_len - q_len :]), k_at._replace(positions=index)


def check_places(q: Array, q_at: Places, k: Array, k_at: Places) -> None:
    """Check the places of queries and keys, [batch, heads, len, dim], against them and each other.

    Raises:
        ValueError: a part is given for one of them alone, has another shape, or is missing.
    """
    for name, ours, theirs in zip(Places._fields, q_at, k_at, strict=True):
        if (ours is None) != (theirs is None):
            raise ValueError(f"give {name} for queries and keys, or for neither")
        for whose, x, given in (("queries", q, ours), ("keys", k, theirs)):
            if given is not None and (
                given.shape[0] not in (1, x.shape[0]) or given.shape[1] != x.shape[2]
            ):
                raise ValueError(
                    f"{name} {given.shape} of {x.shape[2]} {whose} must be [1 or "
                    f"{x.shape[0]}, {x.shape[2]}]"
                )
    if q_at.positions is None and q.shape[2] > k.shape[2]:
        raise ValueError(f"{q.shape[2]} queries over {k.shape[2]} keys need explicit positions")
