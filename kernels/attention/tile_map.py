"""Which tiles of the score matrix a pattern leaves, found from the pattern while compiling."""

from functools import lru_cache

import numpy as np
from jaxtyping import Int8

from kernels.attention.spec import Pattern, Tile


@lru_cache(maxsize=64)
def tile_map(
    pattern: Pattern, q_len: int, k_len: int, rows: int, columns: int
) -> Int8[np.ndarray, "row_tiles column_tiles"]:
    """Return a `Tile` for each tile of `rows` queries and `columns` keys, as int8; read-only.

    Tokens are consecutive, keys have positions 0, 1, ... and queries are the last of them. Tiles at
    the ends may hang over the last token; one that hangs over the last key is never FULL, so
    whoever pads keys masks them together with what the pattern forbids.
    """
    offset = k_len - q_len
    found: dict[tuple[int, ...], Tile] = {}

    def classify(q_first: int, k_first: int) -> Tile:
        q_size, k_size = min(rows, k_len - q_first), min(columns, k_len - k_first)
        key = (q_first - k_first, q_size, k_size) if pattern.relative else (q_first, k_first)
        if key not in found:
            found[key] = pattern.classify(
                q_first, q_first + q_size - 1, k_first, k_first + k_size - 1
            )
        if found[key] == Tile.FULL and k_size < columns:
            return Tile.PARTIAL
        return found[key]

    kinds = [
        [classify(offset + q_first, k_first) for k_first in range(0, k_len, columns)]
        for q_first in range(0, q_len, rows)
    ]
    result = np.array(kinds, np.int8)
    result.setflags(write=False)
    return result
