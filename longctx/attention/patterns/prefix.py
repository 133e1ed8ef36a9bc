"""Prefix-LM: bidirectional over a prefix, causal after it (Raffel et al. 2020, T5, figure 3)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Prefix(Pattern):
    """Causal, but the first `length` positions see each other in both directions."""

    length: int = 128
    """Length of the prefix in tokens."""

    paper = "Raffel et al. 2020"

    def __post_init__(self):
        if self.length < 0:
            raise ValueError(f"Prefix needs a length of at least 0 tokens, not {self.length}")

    @classmethod
    def small(cls):
        return (cls(length=7),)

    @property
    def prefix(self) -> int:
        return self.length

    def allows(self, q_pos, k_pos):
        return (k_pos <= q_pos) | (k_pos < self.length)

    def classify(self, q_first, q_last, k_first, k_last):
        if k_first > q_last and k_first >= self.length:
            return Tile.SKIP
        return Tile.FULL if k_last <= q_first or k_last < self.length else Tile.PARTIAL
