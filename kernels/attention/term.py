"""What a pair's place adds to its score, and to what the query takes from the key."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from kernels.attention.places import Places


class Entries(NamedTuple):
    """What a term says of each of some distances; a part that is None says nothing.

    The first axis has 1 entry if heads share the table.
    """

    embeddings: Float[Array, "tables distances dim"] | None = None
    """The score of a pair at this distance rises by `q . e`."""
    bias: Float[Array, "tables distances"] | None = None
    """It rises by this number."""
    values: Float[Array, "tables distances dim"] | None = None
    """The value that the query takes from a key at this distance rises by this vector."""


class Term(ABC):
    """What is added to the scores `q . k`: a pytree whose leaves are its learned tables.

    Queries arrive already multiplied by the softmax scale, so a term that multiplies queries
    (`q . e`) is scaled with them, as in Shaw et al. 2018, equation 5.
    """

    @property
    def relative(self) -> bool:
        """Whether shifting all positions changes nothing."""
        return True

    @property
    def adds_values(self) -> bool:
        """Whether it also adds to the values (Shaw et al. 2018, equation 3)."""
        return False

    @abstractmethod
    def scores(
        self, q: Float[Array, "batch heads q_len dim"], q_at: Places, k_at: Places
    ) -> Float[Array, "rows heads q_len k_len"]:
        """Return the float32 summand for every pair; `rows` is the batch or 1.

        `q_at` and `k_at` hold positions. The value for a pair that a pattern forbids, or an empty
        slot (position -1), is free but must be finite.

        Raises:
            ValueError: a coordinate that it needs is missing.
        """

    def values(
        self, weights: Float[Array, "batch heads q_len k_len"], q_at: Places, k_at: Places
    ) -> Float[Array, "batch heads q_len dim"]:
        """Return what the weighted values of the pairs add to the output, linear in `weights`."""
        raise NotImplementedError(f"{type(self).__name__} adds nothing to the values")

    def by_distance(self, distances: Int[np.ndarray, " distances"]) -> Entries | None:
        """Return what it says of each distance `q_pos - k_pos`.

        From this a kernel builds whole tiles. None means that more than the distance matters;
        implementations then call `scores` and `values` on each tile.
        """
        return None


class DistanceTerm(Term):
    """A term of the distance alone, constant beyond the ends of its span."""

    @property
    @abstractmethod
    def span(self) -> tuple[int, int]:
        """The least and the largest distance that are told apart."""

    @abstractmethod
    def by_distance(self, distances: Int[np.ndarray, " distances"]) -> Entries:
        """Return what it says of each distance `q_pos - k_pos`; see `Term`."""

    def _entries(self) -> Entries:
        least, largest = self.span
        return self.by_distance(np.arange(least, largest + 1))

    def _index(self, q_at: Places, k_at: Places) -> Int[Array, "rows q_len k_len"]:
        assert q_at.positions is not None
        assert k_at.positions is not None
        distance = q_at.positions[:, :, None] - k_at.positions[:, None, :]
        return jnp.clip(distance, *self.span) - self.span[0]

    def scores(self, q, q_at, k_at):
        entries, index = self._entries(), self._index(q_at, k_at)
        summand = jnp.zeros((1, 1, 1, 1))
        if entries.bias is not None:
            summand += entries.bias[:, index].swapaxes(0, 1)
        if entries.embeddings is not None:
            summand += score_entries(q, entries.embeddings, index)
        return jnp.broadcast_to(summand, (summand.shape[0], q.shape[1], *index.shape[-2:]))

    def values(self, weights, q_at, k_at):
        table, index = self._entries().values, self._index(q_at, k_at)
        if table is None:
            return super().values(weights, q_at, k_at)
        batch, heads, q_len, _ = weights.shape
        index = jnp.broadcast_to(index, (batch, *index.shape[1:]))[:, None]
        b, h, i = jnp.ogrid[:batch, :heads, :q_len]
        at = (b[..., None], h[..., None], i[..., None], index)
        by_entry = jnp.zeros((*weights.shape[:3], table.shape[1])).at[at].add(weights)
        return jnp.einsum("bhqu,hud->bhqd", by_entry, per_head(table, heads))


def score_entries(
    q: Float[Array, "batch heads q_len dim"],
    table: Float[Array, "tables entries dim"],
    index: Int[Array, "rows q_len k_len"],
) -> Float[Array, "batch heads q_len k_len"]:
    """Return the float32 products `q . table[index]`; one table may serve all heads."""
    index = jnp.broadcast_to(index[:, None], (*q.shape[:3], index.shape[2]))
    return jnp.take_along_axis(band(q, table), index, axis=-1)


def band(
    q: Float[Array, "batch heads q_len dim"], table: Float[Array, "tables entries dim"]
) -> Float[Array, "batch heads q_len entries"]:
    """Return the float32 product of each query with each entry; one table may serve all heads."""
    table = per_head(table, q.shape[1]).astype(q.dtype)
    return jnp.einsum("bhqd,hud->bhqu", q, table, preferred_element_type=jnp.float32)


def per_head(
    table: Float[Array, "tables entries dim"], heads: int
) -> Float[Array, "heads entries dim"]:
    """Return a table for each head, where one may be shared."""
    return jnp.broadcast_to(table, (heads, *table.shape[1:]))


def score_entries_only(
    kernel: str, term: Term | None, distances: Int[np.ndarray, " distances"], q: Array
) -> Entries:
    """Return what a term says of distances, for a kernel that has scores by distance and no more.

    Raises:
        NotImplementedError: the term is not one of the distance alone, or adds to the values.
        ValueError: there are tables for neither one nor all of the queries' heads, or vectors of
            another dim: a kernel would read something else without a word.
    """
    entries = Entries() if term is None else term.by_distance(distances)
    if entries is None or entries.values is not None:
        raise NotImplementedError(
            f"{kernel} serves terms of the distance that add to scores alone, which "
            f"{type(term).__name__} is not"
        )
    heads, dim = q.shape[1], q.shape[3]
    for name, table in entries._asdict().items():
        if table is not None and table.shape[0] not in (1, heads):
            raise ValueError(f"{name} {table.shape} must be of 1 head or of all {heads}")
    if entries.embeddings is not None and entries.embeddings.shape[2] != dim:
        raise ValueError(f"embeddings {entries.embeddings.shape} must have the queries' dim {dim}")
    return entries


@partial(jax.tree_util.register_dataclass, data_fields=["parts"], meta_fields=[])
@dataclass(frozen=True)
class SumTerm(Term):
    """Several terms at once."""

    parts: tuple[Term, ...]

    @property
    def relative(self):
        return all(part.relative for part in self.parts)

    @property
    def adds_values(self):
        return any(part.adds_values for part in self.parts)

    def scores(self, q, q_at, k_at):
        return sum(part.scores(q, q_at, k_at) for part in self.parts)

    def values(self, weights, q_at, k_at):
        return sum(part.values(weights, q_at, k_at) for part in self.parts if part.adds_values)

    def by_distance(self, distances):
        said = [part.by_distance(distances) for part in self.parts]
        if any(entries is None for entries in said):
            return None
        return Entries(*(_sum(parts) for parts in zip(*said, strict=True)))


def _sum(parts: tuple[Array | None, ...]) -> Array | None:
    present = [part for part in parts if part is not None]
    return reduce(jnp.add, present) if present else None
