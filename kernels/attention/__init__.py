"""Softmax attention with patterns and score terms, in several interchangeable implementations."""

from kernels.attention.api import IMPLEMENTATIONS, attention
from kernels.attention.merge import merge
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.attention.term import DistanceTerm, Entries, SumTerm, Term

__all__ = [
    "IMPLEMENTATIONS",
    "DistanceTerm",
    "Entries",
    "Pattern",
    "Places",
    "SumTerm",
    "Term",
    "attention",
    "merge",
]
