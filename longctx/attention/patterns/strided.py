"""Strided attention: the last keys, and every stride-th before them (Child et al. 2019, 4.3)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Strided(Pattern):
    """A query sees the `stride` most recent keys and those at distances stride, 2 stride, ..."""

    stride: int = 128
    """Distance between the far keys, and number of the near ones."""

    paper = "Child et al. 2019"

    def __post_init__(self):
        if self.stride < 1:
            raise ValueError(f"Strided needs a stride of at least 1 token, not {self.stride}")

    @classmethod
    def small(cls):
        return (cls(stride=6),)

    @property
    def relative(self) -> bool:
        return True

    def allows(self, q_pos, k_pos):
        distance = q_pos - k_pos
        return (distance >= 0) & ((distance < self.stride) | (distance % self.stride == 0))

    def classify(self, q_first, q_last, k_first, k_last):
        nearest, farthest = q_first - k_last, q_last - k_first
        first = max(nearest, 0)
        if first >= self.stride:
            first += -first % self.stride
        if first > farthest:
            return Tile.SKIP
        gapless = farthest <= self.stride or self.stride == 1 or nearest == farthest
        return Tile.FULL if nearest >= 0 and gapless else Tile.PARTIAL
