"""Bidirectional attention of encoders: every pair (Vaswani et al. 2017; Devlin et al. 2019)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Full(Pattern):
    """A query sees everything, before and after it."""

    paper = "Vaswani et al. 2017"

    @property
    def relative(self) -> bool:
        return True

    @property
    def prefix(self) -> None:
        return None

    def allows(self, q_pos, k_pos):
        return (k_pos <= q_pos) | (k_pos > q_pos)

    def classify(self, q_first, q_last, k_first, k_last):
        return Tile.FULL
