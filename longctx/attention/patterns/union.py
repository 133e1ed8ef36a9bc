"""Union of patterns: what any of them allows, as in Longformer and BigBird."""

from dataclasses import dataclass
from functools import reduce
from operator import or_

from kernels.attention.spec import Pattern, Tile
from longctx.attention.patterns.causal import Causal
from longctx.attention.patterns.combination import Combination
from longctx.attention.patterns.dilated import Dilated
from longctx.attention.patterns.global_ import Global
from longctx.attention.patterns.local import Local


@dataclass(frozen=True)
class Union(Combination):
    """A query sees the keys that some part shows it."""

    @classmethod
    def small(cls):
        return (
            cls((Local(size=5), Global(tokens=2) & Causal())),
            cls((Local(size=4), Dilated(size=3, rate=5))),
        )

    @property
    def window(self) -> int | None:
        windows = [p.window for p in self.parts if p.window is not None]
        return max(windows) if len(windows) == len(self.parts) else None

    @property
    def prefix(self) -> int | None:
        prefixes = [p.prefix for p in self.parts if p.prefix is not None]
        return max(prefixes) if len(prefixes) == len(self.parts) else None

    def allows(self, q_pos, k_pos):
        return reduce(or_, (part.allows(q_pos, k_pos) for part in self.parts))

    def classify(self, q_first, q_last, k_first, k_last):
        tiles = [part.classify(q_first, q_last, k_first, k_last) for part in self.parts]
        if Tile.FULL in tiles or tiles.count(Tile.PARTIAL) < 2:
            return max(tiles)
        return super().classify(q_first, q_last, k_first, k_last)


Pattern.operators["|"] = Union
