"""How a score term is evaluated tile by tile: what to take of it, and where its gradient goes."""

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from kernels.attention.skew import skew
from kernels.attention.spec import Term


class TermTiles(Protocol):
    """Three steps for the tile (i, j): take the part it needs, score with it, add its gradient."""

    def take(self, params: Any, i: Array, j: Array) -> Any: ...

    def scores(self, q: Array, part: Any, q_pos: Array, k_pos: Array) -> Array: ...

    def add(self, total: Any, part: Any, i: Array, j: Array) -> Any: ...


@dataclass(frozen=True)
class NoTiles:
    """No term."""

    def take(self, params, i, j):
        return ()

    def scores(self, q, part, q_pos, k_pos):
        return jnp.zeros(())

    def add(self, total, part, i, j):
        return ()


@dataclass(frozen=True)
class DenseTiles:
    """Any term at any positions: each tile calls `Term.dense`; gradients add up over the term."""

    def take(self, params: Term, i: Array, j: Array) -> Term:
        return params

    def scores(self, q: Array, part: Term, q_pos: Array, k_pos: Array) -> Array:
        return part.dense(q, q_pos, k_pos)

    def add(self, total: Term, part: Term, i: Array, j: Array) -> Term:
        return jax.tree.map(lambda a, b: a + b.astype(a.dtype), total, part)


@dataclass(frozen=True)
class DistanceTiles:
    """A table of embeddings by distance, at consecutive positions: a slice, a product, a skew.

    The table [heads or 1, distances, dim] lists distances from the largest down.
    """

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

    def take(self, params: Array, i: Array, j: Array) -> Array:
        return lax.dynamic_slice_in_dim(params, self._start(i, j), self.width, 1)

    def scores(self, q: Array, part: Array, q_pos: Array, k_pos: Array) -> Array:
        part = jnp.broadcast_to(part, (q.shape[1], *part.shape[1:])).astype(q.dtype)
        band = jnp.einsum("bhqd,hud->bhqu", q, part, preferred_element_type=jnp.float32)
        return skew(band, self.columns)

    def add(self, total: Array, part: Array, i: Array, j: Array) -> Array:
        old = self.take(total, i, j)
        return lax.dynamic_update_slice_in_dim(
            total, old + part.astype(total.dtype), self._start(i, j), 1
        )
