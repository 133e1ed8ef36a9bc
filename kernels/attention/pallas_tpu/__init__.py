"""Fused attention for TPUs in Pallas (Mosaic), with learned relative terms."""

from kernels.attention.pallas_tpu.call import pallas_tpu

__all__ = ["pallas_tpu"]
