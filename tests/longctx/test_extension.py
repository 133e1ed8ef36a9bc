"""Adding m tokens to n that are cached costs O(nm + m^2), and a ring the same at every position."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import Array

from eval.extension import decoding, extension_pairs, filled, layer, pass_pairs, places
from kernels.attention import Places
from longctx.attention.cache import KVCache
from longctx.attention.patterns import Causal, Dilated, Local

MODEL, TILE, MOST = 16, 16, 4
"""MOST: a tile may double the rows and the columns that are computed, no more."""
GRID = [(0, 1), (0, 33), (20, 9), (200, 1), (200, 33)]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr("kernels.attention.blockwise.BLOCK", TILE)


pairs = partial(extension_pairs, model=MODEL)


@pytest.mark.parametrize(("old", "new"), GRID)
def test_an_extension_computes_the_new_rows_alone(old, new):
    needed = old * new + new * (new + 1) // 2
    assert needed <= pairs(Causal(), old, new) <= MOST * (old * new + new * new)


def test_pairs_grow_with_the_old_tokens_times_the_new():
    assert pairs(Causal(), 31, 1) == 32
    assert [pairs(Causal(), n, 16) for n in (48, 112)] == [16 * 64, 16 * 128]
    assert pairs(Causal(), 64, 64) == 64 * 128
    assert pass_pairs(Causal(), 128, model=MODEL) == 36 * TILE * TILE


def test_a_window_makes_the_cost_independent_of_the_old_tokens():
    assert pairs(Local(16), 300, 1) == 16
    assert {pairs(Local(16), n, 32) for n in (16, 300)} == {32 * (16 + 32)}


def flops(old: int, new: int) -> float:
    """Return XLA's count for a whole layer with the reference kernel, which has no loops."""
    mixer = layer(Causal(), "reference", MODEL)
    state = mixer.init_state(1, old + new)
    x, at = jnp.ones((1, new, MODEL)), places(old, new)
    cost = jax.jit(mixer).lower(x, at, state).compile().cost_analysis()
    assert cost is not None
    return cost["flops"]


def test_the_flops_of_a_layer_are_linear_in_the_keys_for_each_new_token():
    """f(n, m) = m (a + b (n + m)), where a is the projections of one token."""
    b = (flops(240, 16) - flops(48, 16)) / 16 / 192
    a = flops(48, 16) / 16 - b * 64
    projections = 4 * 2 * MODEL * MODEL
    assert projections < a < 1.1 * projections
    for n, m in ((0, 64), (192, 64)):
        assert flops(n, m) == pytest.approx(m * (a + b * (n + m)), rel=0.01)


@pytest.mark.parametrize("pattern", [Local(12), Dilated(4, 3), Local(12) & Causal()], ids=str)
def test_a_ring_is_as_large_as_its_window_whatever_the_capacity(pattern):
    mixer = layer(pattern, model=MODEL)
    states = [mixer.init_state(2, capacity) for capacity in (20, 20_000)]
    assert states[0].ring
    assert {s.k.shape for s in states} == {(2, 8, pattern.window, 2)}
    assert jax.tree.map(jnp.shape, states[0]) == jax.tree.map(jnp.shape, states[1])
    grown = mixer.grow_state(states[0], 40_000)
    assert jax.tree.map(jnp.shape, grown) == jax.tree.map(jnp.shape, states[0])
    assert layer(Causal(), model=MODEL).init_state(2, 40).k.shape == (2, 8, 40, 2)


def test_a_ring_stays_as_it_is_while_tokens_pass():
    """The step from one state to the next has one shape, so one program serves every position."""
    mixer = layer(Local(12), model=MODEL)
    traces = []

    @jax.jit
    def step(x: Array, at: Places, state: KVCache) -> KVCache:
        traces.append(x.shape)
        later = mixer(x, at, state)[1]
        assert later is not None
        return later

    state = filled(mixer, 5, capacity=64)
    for position in range(5, 40):
        state = step(jnp.ones((1, 1, MODEL)), places(position, 1), state)
    assert state.at.positions is not None
    assert sorted(state.at.positions[0].tolist()) == list(range(28, 40))
    assert traces == [(1, 1, MODEL)]


def test_turns_leave_what_was_cached_as_it_is():
    """A turn writes its own slots: the keys of older tokens are the same bits as before."""
    mixer = layer(Causal(), model=MODEL)
    state = filled(mixer, 20, capacity=32)
    x = jnp.ones((1, 9, MODEL))
    y, after = jax.jit(mixer)(x, places(20, 9), state)
    assert after is not None
    assert y.shape == (1, 9, MODEL)
    assert bool((after.k[:, :, :20] == state.k[:, :, :20]).all())
    assert bool((after.k[:, :, 20:29] != 0).all())
    assert bool((after.k[:, :, 29:] == 0).all())


def test_decoding_measures_a_ring_and_a_cache_of_every_token():
    measured = [decoding(pattern, 200, tokens=2, steps=1) for pattern in (Local(16), Causal())]
    assert [m["cache_bytes"] for m in measured] == [n * (2 * 256 + 1) * 4 for n in (16, 202)]
    assert [m["tokens"] for m in measured] == [2, 2]
    assert min(m["cpu_seconds"] for m in measured) > 0
