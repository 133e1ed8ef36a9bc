"""Intersection of patterns: what all of them allow."""

from dataclasses import dataclass
from functools import reduce
from operator import and_

from kernels.attention.spec import Pattern, Tile
from longctx.attention.patterns.causal import Causal
from longctx.attention.patterns.combination import Combination
from longctx.attention.patterns.global_ import Global
from longctx.attention.patterns.local import Local
from longctx.attention.patterns.prefix import Prefix


@dataclass(frozen=True)
class Intersection(Combination):
    """A query sees the keys that every part shows it."""

    @classmethod
    def small(cls):
        return cls((Global(tokens=3), Causal())), cls((Local(size=6, ahead=2), Prefix(length=8)))

    @property
    def window(self) -> int | None:
        return min((p.window for p in self.parts if p.window is not None), default=None)

    @property
    def prefix(self) -> int | None:
        return min((p.prefix for p in self.parts if p.prefix is not None), default=None)

    def allows(self, q_pos, k_pos):
        return reduce(and_, (part.allows(q_pos, k_pos) for part in self.parts))

    def classify(self, q_first, q_last, k_first, k_last):
        tiles = [part.classify(q_first, q_last, k_first, k_last) for part in self.parts]
        if Tile.SKIP in tiles or tiles.count(Tile.PARTIAL) < 2:
            return min(tiles)
        return super().classify(q_first, q_last, k_first, k_last)


Pattern.operators["&"] = Intersection
