"""Attention within small sets of tokens, gathered for each head by itself."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from jax import Array
from jaxtyping import Float, Int

from kernels.attention.api import attention
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.attention.term import Entries, SumTerm, Term, per_head


class Items(NamedTuple):
    """Sets of tokens, all of one size."""

    tokens: Int[Array, "batch heads items slots"]
    """A number past the last token is nobody."""
    order: Int[Array, "batch heads items slots"]
    """What the pattern takes for the position; -1 is nobody."""
    positions: Int[Array, "batch heads items slots"]
    """True positions, for the term."""
    segments: Int[Array, "batch heads items slots"] | None

    @classmethod
    def of(cls, at: Places, tokens: Array, order: Array | None = None) -> "Items":
        """Return the items of these tokens, in the order of their positions if no other is given.

        `at` holds positions, and all its parts have a row for each row of the batch.
        """
        assert at.positions is not None
        positions = _pick(at.positions, tokens)
        segments = None if at.segments is None else _pick(at.segments, tokens)
        return cls(tokens, positions if order is None else order, positions, segments)

    def places(self, with_positions: bool) -> Places:
        """Return where the tokens stand, heads first; true positions are the only coordinate."""
        rows = "batch heads items slots -> (heads batch items) slots"
        segments = None if self.segments is None else rearrange(self.segments, rows)
        true = rearrange(self.positions, rows)[..., None] if with_positions else None
        return Places(rearrange(self.order, rows), segments, true)


def _pick(x: Int[Array, "batch len"], tokens: Array) -> Array:
    return jax.vmap(lambda x, i: x.at[i].get(mode="fill", fill_value=-1))(x, tokens)


def attend(
    q: Float[Array, "batch heads q_len dim"],
    k: Float[Array, "batch heads k_len dim"],
    v: Float[Array, "batch heads k_len dim"],
    q_items: Items,
    k_items: Items,
    *,
    pattern: Pattern,
    term: Term | None,
    implementation: str | None,
) -> tuple[Float[Array, "batch heads items slots dim"], Float[Array, "batch heads items slots"]]:
    """Return (out, lse) of the queries of each item over the keys of that item.

    Raises:
        NotImplementedError: the term isn't one of the distance alone, or adds to the values.
    """
    parts = by_position(term, k.shape[2])
    rows = "batch heads items slots dim -> (heads batch items) 1 slots dim"
    gathered = [
        rearrange(take_tokens(x, items.tokens), rows)
        for x, items in ((q, q_items), (k, k_items), (v, k_items))
    ]
    out, lse = attention(
        *gathered, pattern=pattern, term=None if parts is None else ByPosition(parts, q.shape[1]),
        q_at=q_items.places(parts is not None), k_at=k_items.places(parts is not None),
        return_lse=True, implementation=implementation,
    )  # fmt: skip
    sizes = {"batch": q.shape[0], "heads": q.shape[1]}
    back = "(heads batch items) 1 slots dim -> batch heads items slots dim"
    out, lse = (rearrange(x, back, **sizes) for x in (out, lse[..., None]))
    return out, lse[..., 0]


def for_each_row(at: Places, batch: int) -> Places:
    """Return positions and segments for every row of the batch."""
    at = Places(at.positions, at.segments)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, x.shape[1])), at)


def take_tokens(
    x: Float[Array, "batch heads len dim"],
    index: Int[Array, "batch heads *places"],
    fill: float = 0,
) -> Float[Array, "batch heads *places dim"]:
    """Return the tokens at each head's own places; `fill` where a number is past the last."""
    return jax.vmap(jax.vmap(lambda x, i: x.at[i].get(mode="fill", fill_value=fill)))(x, index)


def by_position(term: Term | None, k_len: int) -> tuple[Entries, ...] | None:
    """Return what each part of a term says of the distances 0 and up, the last entry for all more.

    Raises:
        NotImplementedError: the term isn't one of the distance alone, or adds to the values.
    """
    if term is None:
        return None
    parts = []
    for part in term.parts if isinstance(term, SumTerm) else (term,):
        if isinstance(part, SumTerm):
            parts += by_position(part, k_len) or ()
            continue
        largest = min(k_len - 1, getattr(part, "span", (0, k_len - 1))[1])
        entries = part.by_distance(np.arange(max(largest, 0) + 1))
        if entries is None or entries.values is not None:
            raise NotImplementedError(
                f"grouped attention serves terms of the distance that add to scores alone, which "
                f"{type(part).__name__} is not"
            )
        parts.append(entries)
    return tuple(parts)


@partial(jax.tree_util.register_dataclass, data_fields=["parts"], meta_fields=["heads"])
@dataclass(frozen=True)
class ByPosition(Term):
    """A term of true distances, from the only coordinate, for rows that come heads first."""

    parts: tuple[Entries, ...]
    heads: int

    def scores(self, q, q_at, k_at):
        assert q_at.coordinates is not None
        assert k_at.coordinates is not None
        distance = q_at.coordinates[:, :, None, 0] - k_at.coordinates[:, None, :, 0]
        split = "(heads rows) ... -> heads rows ..."
        distance = rearrange(distance, split, heads=self.heads)
        q = rearrange(q[:, 0], split, heads=self.heads)
        summand = jnp.zeros(distance.shape)
        for part in self.parts:
            if part.embeddings is not None:
                table = per_head(part.embeddings, self.heads).astype(q.dtype)
                by_entry = jnp.einsum(
                    "hrqd,hud->hrqu", q, table, preferred_element_type=jnp.float32
                )
                index = jnp.clip(distance, 0, table.shape[1] - 1)
                summand += jnp.take_along_axis(by_entry, index, axis=-1)
            if part.bias is not None:
                bias = jnp.broadcast_to(part.bias, (self.heads, part.bias.shape[1]))
                index = jnp.clip(distance, 0, bias.shape[1] - 1)
                summand += jax.vmap(lambda row, at: row[at])(bias, index)
        return rearrange(summand, "heads rows q k -> (heads rows) 1 q k")
