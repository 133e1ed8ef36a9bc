"""RoPE as it is (Su et al. 2021)."""

from dataclasses import dataclass

from longctx.attention.positions.rope_scaling.base import RopeScaling, unscaled


@dataclass(frozen=True)
class NoScaling(RopeScaling):
    """All frequencies stay."""

    paper = "Su et al. 2021"

    def frequencies(self, base, dim):
        return unscaled(base, dim)
