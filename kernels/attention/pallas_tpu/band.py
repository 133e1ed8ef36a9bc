"""From products by distance to scores by key and back, for rows of squares of a tile.

A tile is `squares` x `squares` squares. With `x` the number of a tile's square by distance, row `a`
of squares needs at its square `m` by key the sheared squares `m - a - 1` and `m - a`. Negative
numbers are those of the left neighbour, which left its sheared squares in `carry`; so every square
is multiplied and sheared once. The way back is the same in reverse: what a tile finds for `x >= n`
belongs to its right neighbour, so `rest` keeps what waits for that one.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu

from kernels.attention.pallas_tpu.shear import shear, stays, unshear, wrapped
from kernels.platform import platform


@dataclass(frozen=True)
class Band(ABC):
    """The squares of a tile; rows of squares are handled `together` at a time."""

    squares: int
    lanes: int

    together: int = 1

    @abstractmethod
    def carry(self) -> Any:
        """Return the scratch for `carry` or `rest`."""

    @abstractmethod
    def by_key(self, a: int, said: list[Array], carry: Any) -> list[Array]:
        """Return the summands [lanes, size] of rows of squares from `a` on, and update `carry`.

        `said` holds the same rows by distance. Called for the left neighbour's, it leaves in
        `carry` what belongs there.
        """

    @abstractmethod
    def by_distance(self, a: int, by_key: list[Array] | None, rest: Any) -> list[Array]:
        """Return the left neighbour's rows by distance, now complete, and update `rest`.

        `by_key` holds this tile's rows [lanes, size]; None if there is no such tile.
        """

    def _split(self, x: Array) -> list[Array]:
        return [x[:, m * self.lanes : (m + 1) * self.lanes] for m in range(self.squares)]


class Exact(Band):
    """In float32."""

    def carry(self):
        return pltpu.VMEM((self.squares, self.squares, self.lanes, self.lanes), jnp.float32)

    def by_key(self, a, said, carry):
        kept, before = range(a + 1), wrapped(self.lanes)
        squares = [carry[a, y] for y in kept] + [shear(x) for x in self._split(said[0])]
        for y in kept:
            carry[a, y] = squares[self.squares + y]
        chosen = [jnp.where(before, squares[m], squares[m + 1]) for m in range(self.squares)]
        return [jnp.concatenate(chosen, axis=1)]

    def by_distance(self, a, by_key, rest):
        n, keep = self.squares, stays(self.lanes)
        nothing = jnp.zeros((self.lanes, self.lanes), jnp.float32)
        own = [nothing] * n if by_key is None else [unshear(x) for x in self._split(by_key[0])]
        squares = [rest[a, m] for m in range(a, n)] + own[: a + 1]
        for m in range(a, n):
            rest[a, m] = own[m]
        chosen = [jnp.where(keep, squares[x], squares[x + 1]) for x in range(n)]
        return [jnp.concatenate(chosen, axis=1)]


class Packed(Band):
    """In bfloat16, two rows of squares in one 32-bit word: half of the rotations and of the space.

    Row a holds the upper halves. Row a + 1 needs at its square m by key what lies one square
    further left, so the word of the squares x and x - 1 serves both.
    """

    def carry(self):
        return pltpu.VMEM((self.squares // 2, self.squares, self.lanes, self.lanes), jnp.uint32)

    def by_key(self, a, said, carry):
        n, pair, before = self.squares, a // 2, wrapped(self.lanes)
        upper, lower = (self._split(x) for x in said)
        single = _float(carry[pair, n - 1])
        words = [carry[pair, y] for y in range(a + 1)]
        words += [shear(_pack(hi, lo)) for hi, lo in zip(upper, [single, *lower], strict=False)]
        for y in range(a + 1):
            carry[pair, y] = words[n + y]
        carry[pair, n - 1] = lax.bitcast_convert_type(lower[-1], jnp.uint32)
        chosen = [jnp.where(before, words[m], words[m + 1]) for m in range(n)]
        return [jnp.concatenate([half(x) for x in chosen], axis=1) for half in (_upper, _lower)]

    def by_distance(self, a, by_key, rest):
        n, pair, keep = self.squares, a // 2, stays(self.lanes)
        nothing = jnp.zeros((self.lanes, self.lanes), jnp.uint32)
        own = [nothing] * n
        if by_key is not None:
            upper, lower = (self._split(x) for x in by_key)
            own = [unshear(_pack(hi, lo)) for hi, lo in zip(upper, lower, strict=True)]
        words = [rest[pair, m] for m in range(a, n)] + own[: a + 2]
        for m in range(a, n):
            rest[pair, m] = own[m]
        chosen = [jnp.where(keep, words[x], words[x + 1]) for x in range(n + 1)]
        return [
            jnp.concatenate([_upper(x) for x in chosen[:-1]], axis=1),
            jnp.concatenate([_lower(x) for x in chosen[1:]], axis=1),
        ]


def _pack(upper: Array, lower: Array) -> Array:
    if platform() != "tpu":  # interpreted
        high, low = (
            lax.bitcast_convert_type(x.astype(jnp.bfloat16).astype(jnp.float32), jnp.uint32)
            for x in (upper, lower)
        )
        return high | low >> 16
    return pltpu.pack_elementwise([lower, upper], packed_dtype=jnp.bfloat16)


def _upper(word: Array) -> Array:
    return _float(word & jnp.uint32(0xFFFF0000))


def _lower(word: Array) -> Array:
    return _float(word << 16)


def _float(word: Array) -> Array:
    return lax.bitcast_convert_type(word, jnp.float32)
