"""What the patterns that are made of patterns have in common."""

from dataclasses import dataclass

from kernels.attention.spec import Pattern


@dataclass(frozen=True)
class Combination(Pattern):
    """Patterns joined by one operator; parts that are joined by the same one are merged in."""

    parts: tuple[Pattern, ...]
    """The patterns."""

    def __post_init__(self):
        patterns = isinstance(self.parts, tuple) and all(isinstance(p, Pattern) for p in self.parts)
        if not (patterns and self.parts):
            raise ValueError(
                f"{type(self).__name__} needs a tuple of at least 1 pattern, not {self.parts!r}"
            )
        nested = [p.parts if isinstance(p, type(self)) else (p,) for p in self.parts]
        object.__setattr__(self, "parts", sum(nested, ()))

    @property
    def relative(self) -> bool:
        return all(part.relative for part in self.parts)
