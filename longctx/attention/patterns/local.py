"""Local attention: a sliding window (Sparse Transformer, Longformer, Mistral)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Local(Pattern):
    """A query sees the `size` most recent keys, itself included: distances 0 to size - 1."""

    size: int = 256
    """Window size in tokens."""
    ahead: int = 0
    """How many later keys are seen too, for encoders."""

    paper = "Beltagy et al. 2020"

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"Local needs a window of at least 1 token, not {self.size}")
        if self.ahead < 0:
            raise ValueError(f"Local can see at least 0 tokens ahead, not {self.ahead}")

    @classmethod
    def small(cls):
        return cls(size=5), cls(size=4, ahead=3)

    @property
    def window(self) -> int:
        return self.size

    @property
    def relative(self) -> bool:
        return True

    @property
    def prefix(self) -> int | None:
        return None if self.ahead else 0

    def allows(self, q_pos, k_pos):
        return (k_pos - q_pos <= self.ahead) & (q_pos - k_pos < self.size)

    def classify(self, q_first, q_last, k_first, k_last):
        nearest, farthest = q_first - k_last, q_last - k_first
        if farthest < -self.ahead or nearest >= self.size:
            return Tile.SKIP
        full = nearest >= -self.ahead and farthest < self.size
        return Tile.FULL if full else Tile.PARTIAL
