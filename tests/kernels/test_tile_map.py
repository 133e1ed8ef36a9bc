"""The map of tiles against looking at every tile by itself."""

import numpy as np
import pytest

from kernels.attention.spec import Pattern, Tile
from kernels.attention.tile_map import tile_map
from longctx.variants import members

PATTERNS = [pattern for kind in members(Pattern).values() for pattern in kind.small()]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize(("q_len", "k_len"), [(40, 40), (13, 37), (1, 20), (24, 48)])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (4, 16), (16, 8)])
def test_every_tile_is_classified_as_by_itself(pattern, q_len, k_len, rows, columns):
    kinds = tile_map(pattern, q_len, k_len, rows, columns)
    offset = k_len - q_len
    for i, q in enumerate(range(offset, k_len, rows)):
        for j, k in enumerate(range(0, k_len, columns)):
            q_end, k_end = min(q + rows, k_len), min(k + columns, k_len)
            want = pattern.classify(q, q_end - 1, k, k_end - 1)
            if want == Tile.FULL and k_end < k + columns:
                want = Tile.PARTIAL
            allowed = pattern.allows(np.arange(q, q_end)[:, None], np.arange(k, k_end)[None])
            assert kinds[i, j] == want
            assert bool(np.any(allowed)) or want != Tile.FULL
            assert not np.any(allowed) or want != Tile.SKIP
