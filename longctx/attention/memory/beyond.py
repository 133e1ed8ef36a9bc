"""What lies behind a local window: the pattern of a memory beside local attention."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern


@dataclass(frozen=True)
class Beyond(Pattern):
    """A query may find the `size` keys before its `window` most recent: nothing is seen twice."""

    nearest: int
    """The first distance that may be found: the window of the local attention."""
    size: int
    """How many keys, from there on, may be found."""

    @property
    def window(self) -> int:
        return self.nearest + self.size

    @property
    def relative(self) -> bool:
        return True

    def allows(self, q_pos, k_pos):
        return (q_pos - k_pos >= self.nearest) & (q_pos - k_pos < self.nearest + self.size)
