"""Filters against slow restatements, and the distribution of the draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longctx.sampling import Sampler

LOGITS = st.lists(st.integers(-40, 40), min_size=2, max_size=9, unique=True)


def kept(sampler: Sampler, logits: list[int]) -> set[int]:
    filtered = sampler.filter(jnp.array([logits], jnp.float32) / 10)[0]
    return set(np.flatnonzero(np.isfinite(filtered)).tolist())


def probabilities(logits: list[int]) -> np.ndarray:
    p = np.exp(np.array(logits) / 10)
    return p / p.sum()


@given(LOGITS, st.integers(1, 12))
def test_top_k_keeps_the_k_likeliest(logits, k):
    assert kept(Sampler(top_k=k), logits) == set(np.argsort(logits)[::-1][:k].tolist())


@given(LOGITS, st.floats(0.05, 0.95))
def test_top_p_keeps_the_fewest_that_reach_p(logits, p):
    total, want = 0.0, set()
    for index in np.argsort(logits)[::-1]:
        if total > p - 1e-4 and abs(total - p) < 1e-4:
            return  # too close to call in float32
        if total >= p:
            break
        want.add(int(index))
        total += probabilities(logits)[index]
    assert kept(Sampler(top_p=p), logits) == want


@given(LOGITS, st.floats(0.05, 0.95))
def test_min_p_keeps_what_is_likely_enough(logits, p):
    likelihood = probabilities(logits) / probabilities(logits).max()
    if np.abs(likelihood - p).min() < 1e-4:
        return
    assert kept(Sampler(min_p=p), logits) == set(np.flatnonzero(likelihood >= p).tolist())


def test_draws_follow_the_tempered_distribution():
    logits = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = Sampler(temperature=0.5).sample(jnp.tile(logits, (20_000, 1)), keys)
    want = np.array([0.25, 0.09, 0.04]) / 0.38
    got = np.bincount(drawn, minlength=3) / 20_000
    np.testing.assert_allclose(got, want, atol=5 * np.sqrt(0.25 / 20_000))


def test_temperature_zero_takes_the_likeliest():
    keys = jax.random.split(jax.random.key(0), 2)
    logits = jnp.array([[0.0, 2.0, 1.0], [5.0, 2.0, 1.0]])
    assert Sampler(temperature=0.0).sample(logits, keys).tolist() == [1, 0]


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"min_p": 2.0}]
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampler(**bad)
