"""YaRN: interpolation by parts and a temperature (Peng et al. 2024, sections 3.2 and 3.4)."""

import math
from dataclasses import dataclass

import numpy as np

from longctx.attention.positions.base import require_at_least
from longctx.attention.positions.rope_scaling.base import RopeScaling, unscaled


@dataclass(frozen=True)
class YaRN(RopeScaling):
    """Slow pairs are interpolated, fast ones kept, and scores grow by a constant.

    The ramp between them is linear in the pair's index between whole indices, as in the authors'
    code; their equation has one in the number of turns. Positions are not divided as well.
    """

    factor: float = 16.0
    """How many times the trained length is wanted."""
    trained_length: int = 4096
    """How long the inputs of training were."""
    beta_fast: float = 32.0
    """From so many turns in the trained length on, a pair is left alone."""
    beta_slow: float = 1.0
    """Up to so many turns, it is slowed in full."""

    paper = "Peng et al. 2024"

    def __post_init__(self):
        require_at_least(self, factor=1, trained_length=1)
        if not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(
                f"YaRN needs 0 < beta_slow < beta_fast, not {self.beta_slow} and {self.beta_fast}"
            )

    @classmethod
    def small(cls):
        return (cls(factor=4.0, trained_length=12, beta_fast=2.0),)

    @property
    def magnitude(self):
        return 0.1 * math.log(self.factor) + 1.0

    def frequencies(self, base, dim):
        def pair(turns: float) -> float:
            return (
                dim * math.log(self.trained_length / (2 * math.pi * turns)) / (2 * math.log(base))
            )

        first = max(math.floor(pair(self.beta_fast)), 0)
        last = min(math.ceil(pair(self.beta_slow)), dim - 1)
        slowed = np.clip((np.arange(dim // 2) - first) / max(last - first, 0.001), 0.0, 1.0)
        fast = unscaled(base, dim)
        return (1 - slowed) * fast + slowed * fast / self.factor
