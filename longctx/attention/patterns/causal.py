"""Full causal attention: every earlier token and the token itself (Vaswani et al. 2017)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Causal(Pattern):
    """A query sees itself and everything before it."""

    paper = "Vaswani et al. 2017"

    @property
    def relative(self) -> bool:
        return True

    def allows(self, q_pos, k_pos):
        return k_pos <= q_pos

    def classify(self, q_first, q_last, k_first, k_last):
        if k_first > q_last:
            return Tile.SKIP
        return Tile.FULL if k_last <= q_first else Tile.PARTIAL
