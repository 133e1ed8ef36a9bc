"""How a score term is evaluated tile by tile: what to take of it, and where its gradient goes."""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kernels.attention.places import Places
from kernels.attention.skew import skew, unskew
from kernels.attention.term import Entries, Term, band, per_head


class TermTiles(Protocol):
    """For the tile (i, j): take the part it needs, score and value with it, add its gradient."""

    adds_values: bool

    def take(self, params: Any, i: Array, j: Array) -> Any: ...

    def scores(self, q: Array, part: Any, q_at: Places, k_at: Places) -> Array: ...

    def values(self, weights: Array, part: Any, q_at: Places, k_at: Places) -> Array: ...

    def add(self, total: Any, part: Any, i: Array, j: Array) -> Any: ...


@dataclass(frozen=True)
class NoTiles:
    """No term."""

    adds_values: bool = False

    def take(self, params, i, j):
        return ()

    def scores(self, q, part, q_at, k_at):
        return jnp.zeros(())

    def values(self, weights, part, q_at, k_at):
        return jnp.zeros(())

    def add(self, total, part, i, j):
        return ()


@dataclass(frozen=True)
class DenseTiles:
    """Any term at any positions: each tile calls the term; gradients add up over it."""

    adds_values: bool

    def take(self, params: Term, i: Array, j: Array) -> Term:
        return params

    def scores(self, q: Array, part: Term, q_at: Places, k_at: Places) -> Array:
        return part.scores(q, q_at, k_at)

    def values(self, weights: Array, part: Term, q_at: Places, k_at: Places) -> Array:
        return part.values(weights, q_at, k_at)

    def add(self, total: Term, part: Term, i: Array, j: Array) -> Term:
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, part)


@dataclass(frozen=True)
class DistanceTiles:
    """Entries by distance, at consecutive positions: a slice, a product, a skew.

    The entries list distances from the largest down.
    """

    adds_values: bool
    rows: int
    columns: int
    row_count: int
    column_count: int

    @property
    def width(self) -> int:
        return self.rows + self.columns

    def distances(self, offset: int) -> np.ndarray:
        """Return the distances that the table must list, if query 0 has position `offset`."""
        length = (self.row_count - 1) * self.rows + self.column_count * self.columns + self.rows
        return offset + self.row_count * self.rows - 1 - np.arange(length)

    def _start(self, i: Array, j: Array) -> Array:
        return (self.row_count - 1 - i) * self.rows + j * self.columns

    def take(self, params: Entries, i: Array, j: Array) -> Entries:
        start = self._start(i, j)
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, self.width, 1), params)

    def scores(self, q: Array, part: Entries, q_at: Places, k_at: Places) -> Array:
        by_distance = jnp.zeros((1, q.shape[1], q.shape[2], self.width))
        if part.embeddings is not None:
            by_distance = band(q, part.embeddings)
        if part.bias is not None:
            by_distance += part.bias[None, :, None, :]
        return skew(by_distance, self.columns)

    def values(self, weights: Array, part: Entries, q_at: Places, k_at: Places) -> Array:
        assert part.values is not None
        table = per_head(part.values, weights.shape[1])
        return jnp.einsum("bhqu,hud->bhqd", unskew(weights, self.width), table)

    def add(self, total: Entries, part: Entries, i: Array, j: Array) -> Entries:
        start = self._start(i, j)

        def add_slice(total: Array, old: Array, part: Array) -> Array:
            new = old + part.astype(total.dtype)
            return lax.dynamic_update_slice_in_dim(total, new, start, 1)

        return jax.tree.map(add_slice, total, self.take(total, i, j), part)
