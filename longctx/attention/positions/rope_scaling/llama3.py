"""Llama 3.1's scaling: long wavelengths interpolated, short ones kept (Grattafiori et al. 2024)."""

from dataclasses import dataclass

import numpy as np

from longctx.attention.positions.base import require_at_least
from longctx.attention.positions.rope_scaling.base import RopeScaling, unscaled


@dataclass(frozen=True)
class Llama3(RopeScaling):
    """Pairs that turn less than `low` times in training are slowed, those above `high` are not."""

    factor: float = 8.0
    """How much slower the slow pairs turn."""
    trained_length: int = 8192
    """How long the inputs of training were."""
    low: float = 1.0
    """Up to so many turns in the trained length, a pair is slowed in full."""
    high: float = 4.0
    """From so many turns on, it is left alone."""

    paper = "Grattafiori et al. 2024"

    def __post_init__(self):
        require_at_least(self, factor=1, trained_length=1)
        if not 0 < self.low < self.high:
            raise ValueError(f"Llama3 needs 0 < low < high, not {self.low} and {self.high}")

    @classmethod
    def small(cls):
        return (cls(factor=4.0, trained_length=12),)

    def frequencies(self, base, dim):
        fast = unscaled(base, dim)
        turns = self.trained_length * fast / (2 * np.pi)
        kept = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)
        return kept * fast + (1 - kept) * fast / self.factor
