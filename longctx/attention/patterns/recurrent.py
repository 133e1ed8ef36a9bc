"""Segment-level recurrence: the connections of Transformer-XL."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Recurrent(Pattern):
    """A query sees the earlier keys of its own segment and `memory` keys before that.

    Segments are cut by position: the first holds positions 0 to segment - 1.
    """

    segment: int = 256
    """Tokens in a segment."""
    memory: int = 256
    """How many tokens before its segment a query sees."""

    paper = "Dai et al. 2019"

    def __post_init__(self):
        if self.segment < 1 or self.memory < 0:
            raise ValueError(
                f"Recurrent needs a segment of at least 1 token and a memory of at least 0, not "
                f"{self.segment} and {self.memory}"
            )

    @classmethod
    def small(cls):
        return (cls(segment=7, memory=5),)

    @property
    def window(self) -> int:
        return self.segment + self.memory

    def allows(self, q_pos, k_pos):
        return (k_pos <= q_pos) & (k_pos >= q_pos - q_pos % self.segment - self.memory)

    def classify(self, q_first, q_last, k_first, k_last):
        least, most = (q - q % self.segment - self.memory for q in (q_first, q_last))
        if k_first > q_last or k_last < least:
            return Tile.SKIP
        return Tile.FULL if k_last <= q_first and k_first >= most else Tile.PARTIAL
