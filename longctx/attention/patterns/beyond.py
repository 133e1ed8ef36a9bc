"""What lies behind a local pattern: the pattern of a memory beside local attention."""

from dataclasses import dataclass
from typing import ClassVar

from kernels.attention.spec import Pattern
from longctx.attention.patterns.local import Local


@dataclass(frozen=True)
class Beyond(Pattern):
    """A query sees earlier keys that `local` does not let it see, at least `size` of them.

    They end `size` keys behind the longest reach of `local`. With Local(n) these are distances n
    to n + size - 1.
    """

    local: Pattern = Local()
    """What is seen elsewhere; it has to have a window."""
    size: int = 4096
    """How many keys, from there on, are seen."""

    paper: ClassVar[str] = "Wu et al. 2022"

    def __post_init__(self):
        if self.local.window is None or self.size < 1:
            raise ValueError(
                f"Beyond needs a local pattern with a window and sees at least 1 key, not "
                f"{self.local} and {self.size}"
            )

    @classmethod
    def small(cls):
        return (cls(Local(4), size=11),)

    @property
    def window(self) -> int:
        assert self.local.window is not None
        return self.local.window + self.size

    @property
    def relative(self) -> bool:
        return self.local.relative

    def allows(self, q_pos, k_pos):
        back = q_pos - k_pos
        return (back >= 0) & (back < self.window) & (self.local.allows(q_pos, k_pos) ^ True)
