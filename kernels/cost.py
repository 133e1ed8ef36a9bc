"""What attention costs: operations, bytes through memory, and the time that they take at best.

The time is that of the roofline model (Williams et al. 2009): the slower of computing and moving.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Protocol

import numpy as np
from jax.experimental import pallas as pl

from kernels.attention.spec import Pattern, Tile
from kernels.attention.tile_map import tile_map


class Shaped(Protocol):
    """An array, a tracer or a `jax.ShapeDtypeStruct`."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...


@dataclass(frozen=True)
class Cost:
    """The work of one call."""

    flops: int
    """Multiplications and additions of the matrix products."""
    transcendentals: int
    """Exponentials."""
    bytes: int
    """What goes through the device's main memory."""

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes

    def seconds(self, peak_flops: float, bandwidth: float) -> float:
        """Return the least time on a device of so many operations and bytes per second."""
        return max(self.flops / peak_flops, self.bytes / bandwidth)

    def estimate(self) -> pl.CostEstimate:
        """Return the `cost_estimate` of a `pallas_call`, by which XLA schedules around it."""
        return pl.CostEstimate(
            flops=self.flops, transcendentals=self.transcendentals, bytes_accessed=self.bytes
        )


def attention_cost(
    q: Shaped,
    k: Shaped,
    live_tiles: int,
    rows: int,
    columns: int,
    *,
    term_matmuls: int = 0,
    backward: bool = False,
) -> Cost:
    """Return the cost of a kernel that computes some tiles of the score matrix.

    Forward, a tile takes two products (Q K^T and P V) and one for each of the term's tables.
    Backward, in one pass, it takes five (Q K^T again, dP, dV, dK, dQ) and three for each table. A
    tile reads its keys, its values, and as many rows of each table; what belongs to the queries is
    moved once, and so are the gradients: dK and dV, and in float32 that of each table, which has
    `q_len + k_len` distances a head. Tiles over the ends count whole, as they are computed. Biases
    are too small to count.

    Args:
        q, k: [batch, heads, q_len, dim] and [batch, kv_heads, k_len, dim]; only shapes are read.
        live_tiles: how many tiles one head of one row of the batch computes; see `live_tiles`.
        rows, columns: queries and keys of a tile.
        term_matmuls: the term's tables of vectors: 1 for embeddings, 2 with values as well.
        backward: the cost of the gradients alone.
    """
    batch, heads, q_len, dim = q.shape
    tiles = batch * heads * live_tiles
    pairs = tiles * rows * columns
    products = 5 + 3 * term_matmuls if backward else 2 + term_matmuls
    of_tiles = tiles * columns * dim * (2 + term_matmuls) * k.dtype.itemsize
    queries = batch * heads * q_len
    each = dim * q.dtype.itemsize
    if backward:
        moved = queries * (3 * each + 2 * 4)  # q, dO and dQ; logsumexp and the rows' sums of dO O
        moved += 2 * prod(k.shape) * k.dtype.itemsize
        moved += term_matmuls * heads * (q_len + k.shape[2]) * dim * 4
    else:
        moved = queries * (2 * each + 4)
    return Cost(2 * dim * pairs * products, pairs, of_tiles + moved)


def live_tiles(pattern: Pattern, q_len: int, k_len: int, rows: int, columns: int) -> int:
    """Return how many tiles of consecutive tokens the pattern leaves to compute."""
    return int((tile_map(pattern, q_len, k_len, rows, columns) != Tile.SKIP).sum())


@lru_cache(maxsize=64)
def useful_pairs(pattern: Pattern, q_len: int, k_len: int) -> int:
    """Return how many pairs talk among consecutive tokens: keys from 0 on, queries the last."""
    offset = k_len - q_len
    if pattern.relative:
        distances = np.arange(offset - k_len + 1, k_len)
        talks = np.broadcast_to(pattern.allows(distances + k_len - 1, k_len - 1), distances.shape)
        first = np.maximum(0, distances - offset)
        last = np.minimum(q_len - 1, k_len - 1 + distances - offset)
        return int(((last - first + 1) * talks).sum())
    size = min(512, k_len)
    kinds = tile_map(pattern, q_len, k_len, size, size)
    return sum(
        _pairs_in_tile(pattern, offset + i * size, j * size, size, k_len)
        for i, j in np.argwhere(kinds != Tile.SKIP).tolist()
    )


def _pairs_in_tile(pattern: Pattern, q_first: int, k_first: int, size: int, end: int) -> int:
    q_pos = np.arange(q_first, min(q_first + size, end))[:, None]
    k_pos = np.arange(k_first, min(k_first + size, end))[None, :]
    return int(np.broadcast_to(pattern.allows(q_pos, k_pos), (q_pos.size, k_pos.size)).sum())
