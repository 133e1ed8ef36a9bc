"""Softmax attention with patterns and score terms, in several interchangeable implementations."""

from kernels.attention.api import IMPLEMENTATIONS, attention
from kernels.attention.merge import merge
from kernels.attention.spec import Pattern, Term

__all__ = ["IMPLEMENTATIONS", "Pattern", "Term", "attention", "merge"]
