"""Which pairs may talk: the object that every implementation takes as its mask."""

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Any

import numpy as np

OUTPUT = "attention_output"
"""The `checkpoint_name` of out and lse: a remat policy that saves it never attends twice."""


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
    """

    @abstractmethod
    def allows(self, q_pos: Any, k_pos: Any) -> Any:
        """Say which pairs talk, for broadcasting integer arrays of numpy or jax.

        Use operators only (`<=`, `&`, `%`), so that both array kinds work.
        """

    @property
    def window(self) -> int | None:
        """How many keys back from the query (itself included) can matter; None if all can."""
        return None

    def classify(self, q_first: int, q_last: int, k_first: int, k_last: int) -> Tile:
        """Classify the tile of query positions and key positions, ends included.

        This default looks at every pair; a pattern with a closed form should override it.
        """
        q_pos = np.arange(q_first, q_last + 1)[:, None]
        k_pos = np.arange(k_first, k_last + 1)[None, :]
        allowed = np.broadcast_to(self.allows(q_pos, k_pos), (q_pos.size, k_pos.size))
        if allowed.all():
            return Tile.FULL
        return Tile.PARTIAL if allowed.any() else Tile.SKIP
