"""What is known of a call while compiling: sizes, blocks, live tiles, distances that matter."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from kernels.attention.spec import Pattern, Tile
from kernels.attention.tile_map import tile_map


class Blocks(NamedTuple):
    """How one kernel cuts the score matrix, and how Triton is to compile it.

    `rows` and `columns` are powers of 2 from 16 on.
    """

    rows: int
    """Queries in a tile."""
    columns: int
    """Keys in a tile; in the kernel of the term's gradient, distances."""
    warps: int = 4
    stages: int = 2

    @property
    def chunk(self) -> int:
        """How many distances one product covers; what a tile needs is a whole number of them."""
        return min(self.rows, self.columns)

    @property
    def band(self) -> int:
        """How many places a tile's distances need: a power of 2, so that `&` finds them."""
        return 1 << (self.rows + self.columns - 1).bit_length()

    @property
    def ring(self) -> int:
        """The same for a tile's distances and one step to the next tile."""
        return 1 << (self.rows + 2 * self.columns - 1).bit_length()


class KernelBlocks(NamedTuple):
    """The blocks of each kernel."""

    forward: Blocks
    backward_q: Blocks
    backward_kv: Blocks
    backward_term: Blocks


class Plan(NamedTuple):
    """All of a call that is no array; the static argument of every kernel."""

    pattern: Pattern
    q_len: int
    k_len: int
    blocks: KernelBlocks

    @property
    def unit(self) -> int:
        """What lengths are padded to a multiple of, which every block divides."""
        return max(max(b.rows, b.columns) for b in self.blocks)

    @property
    def q_padded(self) -> int:
        return -(-self.q_len // self.unit) * self.unit

    @property
    def k_padded(self) -> int:
        return -(-self.k_len // self.unit) * self.unit

    @property
    def offset(self) -> int:
        """The position of the first query."""
        return self.k_len - self.q_len


class Schedule(NamedTuple):
    """For each program, runs of neighbouring tiles: first those that need no mask."""

    runs: Int32[np.ndarray, "programs most 2"]
    """Where a run starts, and where it stops (exclusive)."""
    counts: Int32[np.ndarray, "programs 2"]
    """How many runs need no mask, and how many there are."""


def _schedule(kinds: np.ndarray) -> Schedule:
    found = [_runs(row == Tile.FULL) + _runs(row == Tile.PARTIAL) for row in kinds]
    full = [len(_runs(row == Tile.FULL)) for row in kinds]
    runs = np.zeros((len(found), max(1, *map(len, found)), 2), np.int32)
    for row, pairs in zip(runs, found, strict=True):
        row[: len(pairs)] = np.reshape(pairs, (-1, 2))
    counts = np.array([full, [len(pairs) for pairs in found]], np.int32).T
    return Schedule(runs, counts)


def _runs(where: np.ndarray) -> list[tuple[int, int]]:
    steps = np.diff(where.astype(np.int8), prepend=0, append=0)
    starts, stops = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def _kinds(plan: Plan, rows: int, columns: int) -> np.ndarray:
    """Return the tile map with SKIP for the tiles of padding alone."""
    kinds = tile_map(plan.pattern, plan.q_len, plan.k_len, rows, columns)
    whole = np.full((plan.q_padded // rows, plan.k_padded // columns), Tile.SKIP, np.int8)
    whole[: kinds.shape[0], : kinds.shape[1]] = kinds
    return whole


@lru_cache(maxsize=64)
def row_schedule(plan: Plan, blocks: Blocks) -> Schedule:
    """Return, for each block of queries, runs of blocks of keys."""
    return _schedule(_kinds(plan, blocks.rows, blocks.columns))


@lru_cache(maxsize=64)
def column_schedule(plan: Plan, blocks: Blocks) -> Schedule:
    """Return, for each block of keys, runs of blocks of queries."""
    return _schedule(_kinds(plan, blocks.rows, blocks.columns).T)


@lru_cache(maxsize=64)
def term_schedule(plan: Plan, blocks: Blocks, parts: int) -> Schedule:
    """Return, for each part of the queries and each block of the listed distances, runs of blocks.

    A tile of queries and distances covers keys in the shape of a parallelogram; it is what the
    tile map says of the rectangle around that.
    """
    rows, columns, chunk = blocks.rows, blocks.columns, blocks.chunk
    kinds = _kinds(plan, rows, chunk)
    first, last = listed(plan)
    blocks_of_rows, blocks_of_keys = kinds.shape
    i = np.arange(blocks_of_rows)[:, None, None]
    e = np.arange((last - first) // columns)[None, :, None]
    around = np.arange((rows + columns) // chunk)[None, None, :]
    j = (i * rows + first + e * columns - plan.q_padded) // chunk + around
    inside = (j >= 0) & (j < blocks_of_keys)
    seen = np.where(inside, kinds[i, np.clip(j, 0, blocks_of_keys - 1)], Tile.SKIP)
    tiles = np.where(
        (seen == Tile.FULL).all(axis=2),
        Tile.FULL,
        np.where((seen != Tile.SKIP).any(axis=2), Tile.PARTIAL, Tile.SKIP),
    )
    part = np.arange(blocks_of_rows) * parts // blocks_of_rows
    of_part = [np.where(part == p, tiles.T, Tile.SKIP) for p in range(parts)]
    return _schedule(np.concatenate(of_part))


@lru_cache(maxsize=64)
def listed(plan: Plan) -> tuple[int, int]:
    """Return which distances a term is asked for: first and last (exclusive), from the largest on.

    Counted so that query row `r` and key `c`, of the padded arrays, are at
    `q_padded - 1 - r + c`. Both are multiples of `plan.unit`.
    """
    first, last = plan.q_padded + plan.k_padded, 0
    for blocks in plan.blocks[:3]:
        live = np.argwhere(_kinds(plan, blocks.rows, blocks.columns) != Tile.SKIP)
        start = plan.q_padded + live @ (-blocks.rows, blocks.columns) - blocks.rows
        first = min(first, start.min(initial=first))
        last = max(last, start.max(initial=0) + blocks.rows + blocks.columns)
    if first >= last:
        return 0, plan.unit
    return int(first // plan.unit * plan.unit), int(-(-last // plan.unit) * plan.unit)


def distances(plan: Plan) -> Int32[np.ndarray, " distances"]:
    """Return the listed distances, falling."""
    return (plan.offset + plan.q_padded - 1 - np.arange(*listed(plan))).astype(np.int32)
