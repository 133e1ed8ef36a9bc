"""Attention for GPUs through Pallas and Triton: forward, backward, and learned relative terms."""

from kernels.attention.pallas_gpu.call import pallas_gpu

__all__ = ["pallas_gpu"]
