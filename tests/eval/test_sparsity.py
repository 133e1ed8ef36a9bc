"""Live tiles are those with a pair that talks, and blockwise computes them and no others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eval import sparsity
from eval.counted import counted
from kernels.attention import Pattern, attention
from kernels.attention.blockwise import live_tiles
from longctx.attention.patterns import Causal, Dilated, Fixed, Full, Global, Local, Prefix
from longctx.variants import members

TILE = 8
SHIPPED = [kind for kind in members(Pattern).values() if kind.__module__.startswith("longctx.")]
EXAMPLES = [
    *(pattern for kind in SHIPPED for pattern in kind.small()),
    *(Local(17), Fixed(16, 0), Dilated(3, 12), Local(8) | Global(2) & Causal()),
]
every_example = pytest.mark.parametrize("pattern", EXAMPLES, ids=str)


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr("kernels.attention.blockwise.BLOCK", TILE)


def looked_at(pattern: Pattern, q_len: int, k_len: int) -> tuple[int, int]:
    """Return the tiles with a pair that talks, and all tiles, by looking at every pair."""
    q_pos, k_pos = np.arange(k_len - q_len, k_len)[:, None], np.arange(k_len)
    allowed = np.broadcast_to(pattern.allows(q_pos, k_pos), (q_len, k_len))
    tiles = [
        allowed[i : i + TILE, j : j + TILE].any()
        for i in range(0, q_len, TILE)
        for j in range(0, k_len, TILE)
    ]
    return int(np.sum(tiles)), len(tiles)


@every_example
@pytest.mark.parametrize(("q_len", "k_len"), [(40, 40), (13, 37), (5, 40), (3, 3)])
def test_live_tiles_are_those_with_a_pair_that_talks(pattern, q_len, k_len):
    assert live_tiles(pattern, q_len, k_len) == looked_at(pattern, q_len, k_len)


@pytest.mark.parametrize("pattern", [Full(), Prefix(12), Local(8) | Global(2) & Causal()], ids=str)
def test_blockwise_computes_the_live_tiles_alone(pattern):
    """Once in the forward pass and once in the backward pass."""
    seen, asked = counted(pattern)
    q, k = jnp.ones((1, 2, 13, 4)), jnp.ones((1, 1, 37, 4))

    def total(q, k):
        out = attention(q, k, k, pattern=seen, implementation="blockwise")
        assert isinstance(out, jax.Array)
        return out.sum()

    jax.block_until_ready(jax.jit(jax.grad(total, (0, 1)))(q, k))
    jax.effects_barrier()
    live, _ = live_tiles(pattern, 13, 37)
    assert asked == [TILE * TILE] * (2 * live)


def test_a_window_leaves_as_many_tiles_a_row_whatever_the_length():
    lives = [live_tiles(Local(2 * TILE), n, n)[0] for n in (80, 160, 320)]
    assert lives == [3 * n // TILE - 3 for n in (80, 160, 320)]


def test_what_is_measured_is_what_is_shown():
    found, other = sparsity.measured([Causal(), Full()], 32, steps=1)
    assert (found.live, found.tiles) == (10, 16)
    assert (other.live, other.tiles) == (16, 16)
    assert found.pairs == pytest.approx(33 / 64)
    assert min(found.cpu_seconds, found.wall_seconds, found.temp_bytes) > 0
    half = sparsity.Sparse(0.5, 10, 16, 3e-4, 4e-4, 2_500_000)
    assert sparsity.row("Local(2) | Full()", half) == [
        r"`Local(2) \| Full()`", "50.0%", "10", "62.5%", "0.000", "0.000", "30", "2.5",
    ]  # fmt: skip


def test_the_line_through_the_times_has_their_slope():
    results = [sparsity.Sparse(1.0, n, n, 0.01 + 2e-3 * n, 1.0, 0) for n in (10, 40, 50)]
    assert sparsity.line(results).startswith("CPU s = 0.0100 + 2000 µs x live tiles, corr")
    assert "correlation 1.0000; time per live tile 2200 to 3000 µs, median 2250" in (
        sparsity.line(results)
    )
