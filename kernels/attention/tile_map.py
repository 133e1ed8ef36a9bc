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
    q_first = np.arange(k_len - q_len, k_len, rows)
    k_first = np.arange(0, k_len, columns)

    def classify(q: int, k: int) -> Tile:
        q_end, k_end = min(q + rows, k_len), min(k + columns, k_len)
        kind = pattern.classify(q, q_end - 1, k, k_end - 1)
        return Tile.PARTIAL if kind == Tile.FULL and k_end < k + columns else kind

    if pattern.relative:
        kinds = _by_diagonal(pattern, q_first, k_first, rows, columns)
        kinds[-1] = [classify(int(q_first[-1]), k) for k in k_first.tolist()]
        kinds[:, -1] = [classify(q, int(k_first[-1])) for q in q_first.tolist()]
    else:
        kinds = [[classify(q, k) for k in k_first.tolist()] for q in q_first.tolist()]
    result = np.array(kinds, np.int8)
    result.setflags(write=False)
    return result


def _by_diagonal(
    pattern: Pattern, q_first: np.ndarray, k_first: np.ndarray, rows: int, columns: int
) -> np.ndarray:
    """Return the kinds of whole tiles, each distance looked at once: long rows have millions."""
    distances, index = np.unique(q_first[:, None] - k_first[None, :], return_inverse=True)
    k = -min(int(distances[0]), 0)
    kinds = [
        pattern.classify(q, q + rows - 1, k, k + columns - 1) for q in (distances + k).tolist()
    ]
    return np.array(kinds, np.int8)[index.reshape(q_first.size, k_first.size)]
