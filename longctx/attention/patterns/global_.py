"""Global tokens: a few that see all and that all see (Longformer; attention sinks)."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern, Tile


@dataclass(frozen=True)
class Global(Pattern):
    """The first `tokens` positions see and are seen by all; causal as `Global() & Causal()`."""

    tokens: int = 4
    """How many positions are global."""

    paper = "Beltagy et al. 2020"

    def __post_init__(self):
        if self.tokens < 1:
            raise ValueError(f"Global needs at least 1 token, not {self.tokens}")

    @classmethod
    def small(cls):
        return (cls(tokens=3),)

    @property
    def prefix(self) -> None:
        return None

    def allows(self, q_pos, k_pos):
        return (q_pos < self.tokens) | (k_pos < self.tokens)

    def classify(self, q_first, q_last, k_first, k_last):
        if min(q_first, k_first) >= self.tokens:
            return Tile.SKIP
        return Tile.FULL if min(q_last, k_last) < self.tokens else Tile.PARTIAL
