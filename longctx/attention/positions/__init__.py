"""How place enters attention; one file per scheme."""

from longctx.attention.positions.base import Position
from longctx.attention.positions.none import NoPosition
from longctx.attention.positions.relative import RelativeEmbedding
from longctx.attention.positions.relative_coordinates import RelativePitchTime
from longctx.attention.positions.rope import RoPE
from longctx.attention.positions.sinusoidal import Sinusoidal

__all__ = [
    "NoPosition",
    "Position",
    "RelativeEmbedding",
    "RelativePitchTime",
    "RoPE",
    "Sinusoidal",
]
