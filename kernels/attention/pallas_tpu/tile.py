"""What the forward and the backward kernel share: the inputs of a tile, and its scores."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from kernels.attention.pallas_tpu.band import Band, Exact, Packed
from kernels.attention.pallas_tpu.walk import At
from kernels.attention.spec import Pattern
from kernels.attention.term import Entries

MASKED = -1e30
"""The score of a pair that may not talk: finite, so that no difference of two is NaN."""


def _even(count: int, most: int) -> int:
    """Return the size of equal parts of `count`, as few as can be with at most `most` in each."""
    parts = -(-count // most)
    return -(-count // parts)


class Inputs(NamedTuple):
    """References to the blocks of one tile."""

    q: Any
    """[size, dim]"""
    k: Any
    """[size, dim]"""
    v: Any
    """[size, dim]"""
    left: Entries
    """The term's entries for the tile left of this one."""
    right: Entries
    """Its entries for this tile: embeddings [size, dim], bias [1, size]."""
    segments: tuple[Any, Any] | None
    """Of queries and of keys: [1, size] each."""


@dataclass(frozen=True)
class Plan:
    """What is known while compiling."""

    pattern: Pattern
    q_len: int
    k_len: int
    size: int = 512
    """The side of the square tiles."""
    lanes: int = 128
    """The side of the squares that are sheared: a register's width, or less to test with."""
    longest: int = 16
    """How many tiles of queries and of keys the backward kernel can walk over."""
    vmem_bytes: int | None = None
    """How much vector memory the backward kernel may use, if not the compiler's default."""
    interpret: Any = False

    @property
    def squares(self) -> int:
        """How many sheared squares lie side by side in a tile."""
        return self.size // self.lanes

    @property
    def q_stretch(self) -> int:
        """How many tiles of queries the backward kernel walks over at once."""
        return _even(-(-self.q_len // self.size), self.longest)

    @property
    def k_stretch(self) -> int:
        """How many tiles of keys."""
        return _even(-(-self.k_len // self.size), self.longest)

    @property
    def q_tiles(self) -> int:
        """How many tiles of queries there are, with padding: whole stretches."""
        return -(-self.q_len // (self.size * self.q_stretch)) * self.q_stretch

    @property
    def k_tiles(self) -> int:
        return -(-self.k_len // (self.size * self.k_stretch)) * self.k_stretch

    def part(self, index: int) -> slice:
        """Return the rows of a row of squares."""
        return slice(index * self.lanes, (index + 1) * self.lanes)


def product(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Return the float32 product of two matrices over one axis of each."""
    exact = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return lax.dot_general(
        a, b, (((contract[0],), (contract[1],)), ((), ())),
        precision=exact, preferred_element_type=jnp.float32,
    )  # fmt: skip


def column(row: Array, lanes: int) -> Array:
    """Return [size, lanes] with the elements of a [1, size] row down every column."""
    return jnp.broadcast_to(row, (lanes, row.shape[1])).T


def wide(x: Array, width: int) -> Array:
    """Return [size, width] from an array that holds the same number in every lane of a row."""
    lanes = x.shape[1]
    if width <= lanes:
        return x[:, :width]
    whole = jnp.concatenate([x] * -(-width // lanes), axis=1)
    return whole if width % lanes == 0 else whole[:, :width]


def by_distance(q: Array, entries: Entries, size: int) -> Array:
    """Return [queries, size]: what the term says to each at each of a tile's distances."""
    said = jnp.zeros((q.shape[0], size), jnp.float32)
    if entries.embeddings is not None:
        said = product(q, entries.embeddings[...], (1, 1))
    return said if entries.bias is None else said + entries.bias[...]


def open_run(plan: Plan, band: Band, x: Inputs, carry: Any) -> None:
    """Put into `carry` what the left neighbour of a run's first tile would have left there."""
    said = by_distance(x.q[...], x.left, plan.size)
    for a in range(0, plan.squares, band.together):
        band.by_key(a, [said[plan.part(a + i)] for i in range(band.together)], carry)


def score_rows(
    plan: Plan, band: Band | None, at: At, x: Inputs, carry: Any, q_segments: Any, masked: bool
) -> Iterator[Array]:
    """Yield the masked float32 scores [lanes, size] of each row of squares of a tile.

    `carry` brings the left neighbour's sheared squares, and takes this tile's to the right one.
    """
    size = plan.size
    if band is not None:  # fewer rows need less space
        size = plan.lanes * (1 if plan.squares % 2 else 2)
    for first in range(0, plan.size, size):
        q = x.q[first : first + size]
        scores = product(q, x.k[...], (1, 1))
        rows = [scores[plan.part(i)] for i in range(size // plan.lanes)]
        if band is not None:
            rows = _add_term(plan, band, first // plan.lanes, rows, q, x, carry)
        for i, row in enumerate(rows):
            verdict = seen(plan, at, first // plan.lanes + i, masked, x, q_segments)
            yield row if verdict is None else jnp.where(verdict, row, MASKED)


def _add_term(
    plan: Plan, band: Band, a: int, rows: list[Array], q: Array, x: Inputs, carry: Any
) -> list[Array]:
    said = by_distance(q, x.right, plan.size)
    summands = []
    for i in range(0, len(rows), band.together):
        together = [said[plan.part(i + j)] for j in range(band.together)]
        summands += band.by_key(a + i, together, carry)
    return [row + summand for row, summand in zip(rows, summands, strict=True)]


def band_of(plan: Plan, inputs: Inputs) -> Band | None:
    """Return how the term reaches the scores; None without one.

    A bias stays in float32: rounded to bfloat16, one that grows with the distance (ALiBi) would
    make steps.
    """
    if not jax.tree.leaves(inputs.right):
        return None
    rough = inputs.q.dtype == jnp.bfloat16 and inputs.right.bias is None
    if rough and plan.squares % 2 == 0:
        return Packed(plan.squares, plan.lanes, together=2)
    return Exact(plan.squares, plan.lanes)


def seen(plan: Plan, at: At, a: int, masked: bool, x: Inputs, q_segments: Any) -> Array | None:
    """Return which pairs talk in row `a` of squares, or None if all do."""
    shape, verdict = (plan.lanes, plan.size), None
    if masked:
        first = plan.k_len - plan.q_len + at.q_tile * plan.size + a * plan.lanes
        q_pos = first + lax.broadcasted_iota(jnp.int32, shape, 0)
        k_pos = at.k_tile * plan.size + lax.broadcasted_iota(jnp.int32, shape, 1)
        verdict = plan.pattern.allows(q_pos, k_pos)
        if plan.k_len % plan.size:
            verdict &= k_pos < plan.k_len
    if x.segments is not None:
        same = wide(q_segments[plan.part(a)], plan.size) == x.segments[1][...]
        verdict = same if verdict is None else verdict & same
    return verdict
