"""Which pairs of tokens may talk; one file per pattern."""

from kernels.attention.spec import Pattern
from longctx.attention.patterns.causal import Causal
from longctx.attention.patterns.local import Local

__all__ = ["Causal", "Local", "Pattern"]
