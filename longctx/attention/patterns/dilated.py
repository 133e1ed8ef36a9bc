"""Dilated local attention: a sliding window with gaps (Longformer, Beltagy et al. 2020, 3.1)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Dilated(Pattern):
    """A query sees `size` keys: itself and those at distances rate, 2 rate, ..."""

    size: int = 256
    """Number of keys."""
    rate: int = 2
    """Distance between one key and the next."""

    paper = "Beltagy et al. 2020"

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"Dilated needs a size of at least 1 token, not {self.size}")
        if self.rate < 1:
            raise ValueError(f"Dilated needs a rate of at least 1 token, not {self.rate}")

    @classmethod
    def small(cls):
        return (cls(size=4, rate=3),)

    @property
    def window(self) -> int:
        return (self.size - 1) * self.rate + 1

    @property
    def relative(self) -> bool:
        return True

    def allows(self, q_pos, k_pos):
        distance = q_pos - k_pos
        return (distance >= 0) & (distance < self.window) & (distance % self.rate == 0)

    def classify(self, q_first, q_last, k_first, k_last):
        nearest, farthest = q_first - k_last, q_last - k_first
        first = max(nearest, 0)
        first += -first % self.rate
        if first > min(farthest, self.window - 1):
            return Tile.SKIP
        gapless = self.rate == 1 or nearest == farthest
        full = gapless and nearest >= 0 and farthest < self.window
        return Tile.FULL if full else Tile.PARTIAL
