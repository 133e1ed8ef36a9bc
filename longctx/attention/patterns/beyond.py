"""What lies behind a local window: the pattern of a memory beside local attention."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Beyond(Pattern):
    """A query sees the `size` keys before its `nearest` most recent, so none that Local(nearest)
    sees."""

    nearest: int = 256
    """The first distance that is seen."""
    size: int = 4096
    """How many keys, from there on, are seen."""

    paper = "Wu et al. 2022"

    def __post_init__(self):
        if self.nearest < 0 or self.size < 1:
            raise ValueError(
                f"Beyond begins at a distance of at least 0 and sees at least 1 key, not "
                f"{self.nearest} and {self.size}"
            )

    @classmethod
    def small(cls):
        return (cls(nearest=4, size=11),)

    @property
    def window(self) -> int:
        return self.nearest + self.size

    @property
    def relative(self) -> bool:
        return True

    def allows(self, q_pos, k_pos):
        return (q_pos - k_pos >= self.nearest) & (q_pos - k_pos < self.nearest + self.size)

    def classify(self, q_first, q_last, k_first, k_last):
        least, most = q_first - k_last, q_last - k_first
        if most < self.nearest or least >= self.window:
            return Tile.SKIP
        full = least >= self.nearest and most < self.window
        return Tile.FULL if full else Tile.PARTIAL
