"""Position interpolation: all frequencies divided by one factor (Chen et al. 2023)."""

from dataclasses import dataclass

from longctx.attention.positions.base import require_at_least
from longctx.attention.positions.rope_scaling.base import RopeScaling, unscaled


@dataclass(frozen=True)
class LinearScaling(RopeScaling):
    """Longer inputs are squeezed into the angles that training saw."""

    factor: float = 4.0
    """How many times the trained length is wanted."""

    paper = "Chen et al. 2023"

    def __post_init__(self):
        require_at_least(self, factor=1)

    def frequencies(self, base, dim):
        return unscaled(base, dim) / self.factor
