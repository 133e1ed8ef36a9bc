"""Dynamic NTK scaling: a base that fits the length of the run (emozilla 2023)."""

from dataclasses import dataclass

from longctx.attention.positions.base import require_at_least
from longctx.attention.positions.rope_scaling.base import RopeScaling, rebased


@dataclass(frozen=True)
class DynamicNTK(RopeScaling):
    """NTK by as much as the length of the run asks for; none up to the trained length.

    Cached keys are already rotated, so a base that grew with every token, as in other code, would
    compare new queries with keys of old bases. The length is therefore that of the whole run and
    stands in the config.
    """

    length: int = 4096
    """How long this run will get, in tokens."""
    trained_length: int = 1024
    """How long the inputs of training were."""
    factor: float = 1.0
    """The base follows `factor * length / trained_length - (factor - 1)`."""

    paper = "emozilla 2023; Peng et al. 2024, section 3.3"

    def __post_init__(self):
        require_at_least(self, length=1, trained_length=1, factor=1)

    @classmethod
    def small(cls):
        return (cls(length=40, trained_length=10, factor=2.0),)

    def frequencies(self, base, dim):
        excess = max(self.length / self.trained_length, 1.0) - 1.0
        return rebased(base, dim, 1.0 + self.factor * excess)
