"""Compiling for accelerators that are not here, and what the compilers' output costs."""
