"""Which pairs of tokens may talk; one file per pattern.

A new file needs no line here: `longctx.variants.members` finds it. These names are shortcuts.
"""

from kernels.attention.spec import Pattern
from longctx.attention.patterns.beyond import Beyond
from longctx.attention.patterns.causal import Causal
from longctx.attention.patterns.dilated import Dilated
from longctx.attention.patterns.fixed import Fixed
from longctx.attention.patterns.full import Full
from longctx.attention.patterns.global_ import Global
from longctx.attention.patterns.intersection import Intersection
from longctx.attention.patterns.local import Local
from longctx.attention.patterns.prefix import Prefix
from longctx.attention.patterns.recurrent import Recurrent
from longctx.attention.patterns.strided import Strided
from longctx.attention.patterns.union import Union

__all__ = [
    "Beyond",
    "Causal",
    "Dilated",
    "Fixed",
    "Full",
    "Global",
    "Intersection",
    "Local",
    "Pattern",
    "Prefix",
    "Recurrent",
    "Strided",
    "Union",
]
