"""Local causal attention: a sliding window (Sparse Transformer, Longformer, Mistral)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Local(Pattern):
    """A query sees the `size` most recent keys, itself included: distances 0 to size - 1."""

    size: int = 256
    """Window size in tokens."""

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"Local needs a window of at least 1 token, not {self.size}")

    @property
    def window(self) -> int:
        return self.size

    def allows(self, q_pos, k_pos):
        return (k_pos <= q_pos) & (q_pos - k_pos < self.size)

    def classify(self, q_first, q_last, k_first, k_last):
        if k_first > q_last or q_first - k_last >= self.size:
            return Tile.SKIP
        return Tile.FULL if k_last <= q_first and q_last - k_first < self.size else Tile.PARTIAL
