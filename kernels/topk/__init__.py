"""The nearest keys of each query, exactly or by expected recall, in interchangeable kernels."""

from kernels.topk.api import IMPLEMENTATIONS, nearest

__all__ = ["IMPLEMENTATIONS", "nearest"]
