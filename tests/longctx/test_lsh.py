"""LSH attention, held to its equation token by token, and to what it must not see."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention.places import Places
from longctx.attention.positions import FIRE
from longctx.mixers.lsh import LSH

MODEL, LENGTH = 16, 40
SMALL = LSH.small()[0]
PLAIN = LSH(heads=2, buckets=4, rounds=3, window=4)
pytestmark = pytest.mark.usefixtures("quick_compilation")


def build(config, seed=0) -> Any:
    return config.build(MODEL, jnp.float32, nnx.Rngs(seed))


def inputs(rows=2, length=LENGTH, seed=0):
    return jax.random.normal(jax.random.key(seed), (rows, length, MODEL))


def compiled(layer):
    graphdef, variables = nnx.split(layer)
    return partial(jax.jit(lambda v, *args: nnx.merge(graphdef, v)(*args)), variables)


def expected(layer, x):
    """Return the equation's outputs in float64, round by round and token by token."""
    config, dim = layer.config, layer.dim
    kernels = (np.asarray(w.kernel[...], np.float64) for w in (layer.qk, layer.v, layer.out))
    x, (qk, value, out) = np.asarray(x, np.float64), kernels
    shape = (config.rounds, config.heads, dim, config.buckets // 2)
    R = np.asarray(jax.random.normal(jax.random.key(config.seed), shape), np.float64)
    y = np.zeros(x.shape)
    for b, h in np.ndindex(len(x), config.heads):
        head = slice(h * dim, (h + 1) * dim)
        q, v = x[b] @ qk[:, head], x[b] @ value[:, head]
        k = q / np.linalg.norm(q, axis=1, keepdims=True)
        weights = np.zeros((len(q), len(q)))
        for r in range(config.rounds):
            turned = q @ R[r, h]
            bucket = np.concatenate([turned, -turned], axis=1).argmax(axis=1)
            order = np.argsort(bucket, kind="stable")
            chunk = np.argsort(order) // config.window
            for i in range(len(q)):
                seen = [j for j in range(i) if bucket[j] == bucket[i]]
                if config.selection == "paper":
                    seen = [j for j in seen if chunk[i] - chunk[j] <= 1]
                else:
                    seen = seen[-config.window :]
                weights[i, seen] += np.exp(k[seen] @ q[i] / dim**0.5)
        alone = weights.sum(axis=1) == 0
        weights[alone, alone.nonzero()[0]] = 1.0
        y[b] += weights / weights.sum(axis=1, keepdims=True) @ v @ out[head]
    return y


@pytest.mark.parametrize("selection", ["causal", "paper"])
def test_the_pass_is_the_equation(selection):
    layer, x = build(replace(PLAIN, selection=selection)), inputs()
    y, nothing = compiled(layer)(x)
    assert nothing is None
    np.testing.assert_allclose(y, expected(layer, x), atol=1e-5)


@pytest.mark.parametrize(("selection", "leaks"), [("causal", False), ("paper", True)])
def test_the_future_selects_nothing_but_in_the_paper(selection, leaks):
    call, x = compiled(build(replace(SMALL, selection=selection))), inputs()
    changed = x.at[:, 25:].set(inputs(seed=1)[:, 25:])
    before, after = (call(y)[0] for y in (x, changed))
    moved = np.any(before[:, :25] != after[:, :25], axis=-1)
    assert moved.any() == leaks


def test_the_first_token_takes_its_own_value():
    layer, x = build(SMALL), inputs()
    y, _ = compiled(layer)(x)
    np.testing.assert_allclose(y[:, 0], layer.out(layer.v(x[:, 0])), atol=1e-6)


def test_hashes_are_of_the_seed_and_of_the_direction_alone():
    layer, other = build(SMALL), build(SMALL, seed=1)
    x = jax.random.normal(jax.random.key(0), (2, 4, LENGTH, 4))
    buckets = layer.hashed(x)
    np.testing.assert_array_equal(buckets, other.hashed(7 * x))
    np.testing.assert_array_equal((buckets + 2) % 4, layer.hashed(-x))
    assert set(np.unique(buckets)) == set(range(4))
    assert np.any(buckets != build(replace(SMALL, seed=1)).hashed(x))


def test_a_token_past_the_capacity_is_nan():
    layer = build(SMALL)
    y, _ = compiled(layer)(inputs(length=10), Places(), layer.init_state(2, 9))
    assert np.isnan(y).all()


def test_what_sees_ahead_can_not_decode():
    layer = build(replace(SMALL, selection="paper"))
    assert layer.config.selects_ahead
    with pytest.raises(ValueError, match="later tokens decide"):
        layer.init_state(1, 4)
    with pytest.raises(ValueError, match="later tokens decide"):
        layer(inputs(), Places(), build(SMALL).init_state(2, LENGTH))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: LSH(heads=0), "heads must be at least 1, not 0"),
        (lambda: LSH(buckets=3), "buckets 3 must be even"),
        (lambda: LSH(rounds=0), "rounds must be at least 1, not 0"),
        (lambda: LSH(window=0), "window must be at least 1, not 0"),
        (lambda: LSH(selection="none"), "selection must be"),  # pyright: ignore
        (lambda: build(LSH(heads=3)), "must be a multiple of heads"),
        (lambda: build(LSH(width=0)), "width 0"),
        (lambda: build(LSH(position=FIRE())), "terms of the distance"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_scored_counts_pairs_and_hashing():
    config = LSH(heads=2, buckets=2, rounds=3, window=1, width=16)
    # Of 10 tokens the first has none before it and the second half a token of its bucket.
    assert config.scored(64, 10) == 16 * 3 * (8.5 + 5)
