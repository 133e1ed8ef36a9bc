"""No positions at all: a causal decoder can count for itself (Kazemnejad et al. 2023, NoPE)."""

from dataclasses import dataclass

from longctx.attention.positions.base import Position


@dataclass(frozen=True)
class NoPosition(Position):
    """Place is known from the causal mask alone."""

    paper = "Kazemnejad et al. 2023"
