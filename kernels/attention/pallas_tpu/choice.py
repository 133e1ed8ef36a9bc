"""How a call is cut: the side of its tiles, and how far the backward kernel walks at once."""

import jax.numpy as jnp

from kernels.attention.pallas_tpu.tile import Plan
from kernels.attention.spec import Pattern
from kernels.cost import Shaped, live_tiles
from kernels.platform import device_kind, platform
from kernels.targets import target_of
from kernels.tuning import measured

LANES = 128
SMALLEST_VMEM = 16 * 2**20
"""Of TPU v4; assumed of an unknown device."""
MOST_TOKENS = 16384
"""How far the backward kernel walks at once, also where vector memory would allow more."""
COST = {512: 1.0, 1024: 0.85}
"""What a pair costs in tiles of a size, by the bundles that the compiler counts for v6e."""


def choose(q: Shaped, k: Shaped, pattern: Pattern, has_term: bool) -> Plan:
    """Return the plan for a call on the device that the program is built for."""
    target = target_of(device_kind())
    vmem = SMALLEST_VMEM if target is None else target.on_chip
    q_len, k_len, dim = q.shape[2], k.shape[2], q.shape[3]
    blocks = measured("pallas_tpu", dim, q.dtype, k_len, term=has_term, way="both")
    if blocks is not None:
        size = blocks.rows
    elif vmem <= SMALLEST_VMEM or q.dtype == jnp.float32:
        size = 256
    else:
        size = min(_sizes(k_len), key=lambda size: _work(pattern, q_len, k_len, size))
    size = min(size, -(-max(q_len, k_len) // LANES) * LANES)
    # The backward kernel's sums: of keys and values, and of as many entries as queries and keys.
    sums = 2 * size * max(dim, LANES) * 4 * (4 if has_term else 2)
    tiles = 6 * size * size * 4 + 16 * size * max(dim, LANES) * 4
    return Plan(
        pattern, q_len, k_len, size,
        longest=min(MOST_TOKENS // size, max(1, (vmem - tiles) // sums)),
        vmem_bytes=vmem - 2**20,
        interpret=platform() == "cpu",
    )  # fmt: skip


def _sizes(k_len: int) -> list[int]:
    """Return sizes to consider: a large tile takes a minute to compile, so for long rows only."""
    return [size for size in COST if size == min(COST) or 8 * size <= k_len]


def _work(pattern: Pattern, q_len: int, k_len: int, size: int) -> float:
    return COST[size] * size * size * live_tiles(pattern, q_len, k_len, size, size)
