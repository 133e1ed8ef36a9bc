"""The order in which a kernel visits tiles: one list of the live ones, row by row.

A grid that is this list visits nothing else, whatever the pattern. The kernel reads each step from
scalar memory, where a 32-bit word holds it.
"""

from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jaxtyping import Int8, Int32

from kernels.attention.spec import Tile

FLAG_BITS = 6
INDEX_BITS = 13
MAX_TILES = 1 << INDEX_BITS
"""How many tiles a row or a column may have."""
MAX_STEPS = 260_000
"""How many steps fit into the 1 MiB of scalar memory, with some room for what else is there."""


class Step(IntFlag):
    """What to do at a tile, besides where it is."""

    FIRST = 1
    """Its row of tiles begins."""
    LAST = 2
    """Its row of tiles ends."""
    OPEN = 4
    """It is live, and its left neighbour was not visited just before."""
    CLOSE = 8
    """It is live, and its right neighbour is not visited next."""
    MASK = 16
    """Some of its pairs may not talk."""
    LIVE = 32
    """Some of its pairs may talk; a row without any has one step that is not live."""


class At(NamedTuple):
    """A step: which tile of the arrays at hand, and which tile of the whole sequences that is."""

    row: Any
    column: Any
    q_tile: Any
    k_tile: Any
    word: Any

    def has(self, flag: Step) -> Any:
        """Say whether the step has the flag."""
        return (self.word & int(flag)) != 0


def read(steps: Any, t: Any) -> At:
    """Return step `t`; operators only, so index maps can use it."""
    word = steps[t + 2]
    row = lax.shift_right_logical(word, FLAG_BITS + INDEX_BITS)
    column = lax.shift_right_logical(word, FLAG_BITS) & (MAX_TILES - 1)
    return At(row, column, steps[0] + row, steps[1] + column, word)


def walk(
    kinds: Int8[np.ndarray, "row_tiles column_tiles"], first: tuple[int, int] = (0, 0)
) -> Int32[np.ndarray, " steps_and_two"]:
    """Return `first` and the steps over a tile map, which starts there in a larger one."""
    words = [np.array(first)]
    for row, kinds_of_row in enumerate(kinds):
        live = np.flatnonzero(kinds_of_row != Tile.SKIP)
        columns = live if live.size else np.zeros(1, int)
        flags = np.zeros(columns.size, int)
        flags[0] |= Step.FIRST
        flags[-1] |= Step.LAST
        if live.size:
            apart = np.diff(live) != 1
            flags |= Step.LIVE
            flags |= np.where(np.concatenate([[True], apart]), Step.OPEN, 0)
            flags |= np.where(np.concatenate([apart, [True]]), Step.CLOSE, 0)
            flags |= np.where(kinds_of_row[live] == Tile.PARTIAL, Step.MASK, 0)
        words.append(((row << INDEX_BITS | columns) << FLAG_BITS) | flags)
    return np.concatenate(words).astype(np.int32)
