"""How place enters attention; one file per scheme.

A new file needs no line here: `longctx.variants.members` finds it. These names are shortcuts.
"""

from longctx.attention.positions.alibi import ALiBi
from longctx.attention.positions.base import Position
from longctx.attention.positions.concatenated_sinusoidal import ConcatenatedSinusoidal
from longctx.attention.positions.fire import FIRE
from longctx.attention.positions.learned import Learned
from longctx.attention.positions.none import NoPosition
from longctx.attention.positions.relative import RelativeEmbedding
from longctx.attention.positions.relative_coordinates import RelativePitchTime
from longctx.attention.positions.rope import RoPE
from longctx.attention.positions.sinusoidal import Sinusoidal
from longctx.attention.positions.t5_bias import T5Bias
from longctx.attention.positions.together import Together

__all__ = [
    "FIRE",
    "ALiBi",
    "ConcatenatedSinusoidal",
    "Learned",
    "NoPosition",
    "Position",
    "RelativeEmbedding",
    "RelativePitchTime",
    "RoPE",
    "Sinusoidal",
    "T5Bias",
    "Together",
]
