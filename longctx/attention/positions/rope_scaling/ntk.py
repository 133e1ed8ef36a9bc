"""NTK-aware scaling: another base, so low frequencies stretch and high ones stay (bloc97 2023)."""

from dataclasses import dataclass

from longctx.attention.positions.base import require_at_least
from longctx.attention.positions.rope_scaling.base import RopeScaling, rebased


@dataclass(frozen=True)
class NTK(RopeScaling):
    """The base is multiplied by `factor^(d / (d - 2))`."""

    factor: float = 4.0
    """How much slower the slowest pair turns."""

    paper = "bloc97 2023; Peng et al. 2024, section 3.1"

    def __post_init__(self):
        require_at_least(self, factor=1)

    def frequencies(self, base, dim):
        return rebased(base, dim, self.factor)
