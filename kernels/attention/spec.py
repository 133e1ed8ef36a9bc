"""Which pairs may talk: the object that every implementation takes as its mask."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ClassVar, Self

import numpy as np


class Tile(IntEnum):
    """What a pattern leaves of a rectangle of (query, key) pairs."""

    SKIP = 0
    PARTIAL = 1
    FULL = 2


class Pattern(ABC):
    """Which pairs may talk: a predicate on positions.

    Subclasses are frozen dataclasses. The same object is the config entry, the static argument of
    a jitted function, the mask of the reference, the mask inside a tile and, evaluated with numpy,
    the map of the tiles to skip. Pass the object itself as a static argument, never a bound method.
    `a & b` allows what both allow, `a | b` what either allows.
    """

    paper: ClassVar[str] = ""
    """The source in a few words."""
    operators: ClassVar[dict[str, Callable[[tuple["Pattern", ...]], "Pattern"]]] = {}
    """What `&` and `|` build of two patterns; the classes that do so enter themselves."""

    @classmethod
    def small(cls) -> tuple[Self, ...]:
        """Return the instances to test, at the scale of sequences of 40 tokens."""
        return (cls(),)

    @abstractmethod
    def allows(self, q_pos: Any, k_pos: Any) -> Any:
        """Say which pairs talk, for broadcasting integer arrays of numpy or jax.

        Use operators only (`<=`, `&`, `%`), so that both array kinds work, and `%` rather than
        `//`, which not every kernel compiler has.
        """

    @property
    def window(self) -> int | None:
        """How many keys back from the query (itself included) can matter; None if all can."""
        return None

    @property
    def relative(self) -> bool:
        """Whether `allows` depends on the distance `q_pos - k_pos` alone."""
        return False

    @property
    def prefix(self) -> int | None:
        """How many first tokens may see each other in both directions, so enter in one chunk.

        0 if no query sees ahead; None if queries anywhere may, so tokens can't come one by one.
        """
        return 0

    def __and__(self, other: "Pattern") -> "Pattern":
        return self.operators["&"]((self, other))

    def __or__(self, other: "Pattern") -> "Pattern":
        return self.operators["|"]((self, other))

    def classify(self, q_first: int, q_last: int, k_first: int, k_last: int) -> Tile:
        """Classify the tile of query positions and key positions, ends included.

        FULL and SKIP are promises, PARTIAL makes none. This default looks at every pair, or at
        every distance if the pattern is relative; one with a closed form should override it.
        """
        q_pos = np.arange(q_first, q_last + 1)[:, None]
        k_pos = np.arange(k_first, k_last + 1)[None, :]
        if self.relative:
            q_pos = np.arange(q_first, q_last + k_last - k_first + 1)[:, None]
            k_pos = np.array([[k_last]])
        allowed = np.broadcast_to(self.allows(q_pos, k_pos), (q_pos.size, k_pos.size))
        if allowed.all():
            return Tile.FULL
        return Tile.PARTIAL if allowed.any() else Tile.SKIP
