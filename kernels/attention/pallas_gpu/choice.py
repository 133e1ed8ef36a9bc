"""Default block sizes: what compiles with no or few spilled registers."""

import jax.numpy as jnp
from jax.typing import DTypeLike

from kernels.attention.pallas_gpu.plan import Blocks, KernelBlocks
from kernels.attention.term import Entries

BLOCKS = {
    ("none", "bfloat16", 64): [(128, 64, 8, 2), (128, 64, 8, 2), (64, 128, 8, 2)],
    ("none", "bfloat16", 128): [(128, 64, 8, 2), (128, 64, 8, 2), (64, 64, 8, 2)],
    ("none", "float32", 64): [(64, 32, 8, 2), (32, 32, 4, 2), (32, 32, 4, 2)],
    ("none", "float32", 128): [(32, 32, 8, 2), (32, 32, 8, 2), (32, 32, 8, 2)],
    ("bias", "bfloat16", 64): [(128, 64, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2), (32, 64, 4, 1)],
    ("bias", "bfloat16", 128): [(64, 64, 8, 2), (64, 64, 8, 2), (64, 64, 8, 2), (32, 64, 8, 1)],
    ("bias", "float32", 64): [(32, 32, 4, 2), (32, 32, 4, 2), (32, 32, 8, 2), (16, 32, 4, 1)],
    ("bias", "float32", 128): [(32, 32, 8, 2), (32, 32, 8, 2), (32, 32, 8, 2), (16, 16, 4, 1)],
    ("ring", "bfloat16", 64): [(64, 64, 4, 1), (64, 64, 4, 1), (32, 64, 4, 1), (32, 64, 4, 1)],
    ("ring", "bfloat16", 128): [(64, 64, 8, 1), (32, 64, 8, 1), (32, 64, 8, 1), (32, 64, 8, 1)],
    ("ring", "float32", 64): [(32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 8, 1), (16, 32, 4, 1)],
    ("ring", "float32", 128): [(16, 32, 4, 1), (32, 32, 8, 1), (16, 16, 4, 1), (16, 16, 4, 1)],
}
"""Rows, columns, warps and stages of each kernel, by what the term has, dtype and largest dim.

A kernel with rings has 1 stage: with more, Triton loads ahead of the barriers what a later
iteration needs, the ring's places among it. The kernel of the term's gradient always has rings.
"""


def blocks(dim: int, dtype: DTypeLike, said: Entries) -> KernelBlocks:
    """Return the blocks for a head dimension and a term that says this."""
    kind = "none"
    if said.bias is not None:
        kind = "bias"
    if said.embeddings is not None:
        kind = "ring"
    chosen = [Blocks(*sizes) for sizes in BLOCKS[kind, jnp.dtype(dtype).name, max(64, dim)]]
    return KernelBlocks(*chosen, *chosen[: 4 - len(chosen)])
