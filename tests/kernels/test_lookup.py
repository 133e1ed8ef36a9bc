"""Entries at known places: equal to indexing, forward and backward, and no gradient scatters."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import Term
from kernels.attention.lookup import MAX_RUNS, lookup
from longctx.attention.positions.relative import RelativeTerm
from longctx.attention.positions.t5_bias import T5Bias, T5Term

ENTRIES = 7
RUNS = st.tuples(
    st.integers(0, ENTRIES - 1), st.sampled_from([-1, 0, 1, 2]), st.integers(1, 9)
).map(lambda run: np.clip(run[0] + run[1] * np.arange(run[2]), 0, ENTRIES - 1))
INDICES = st.lists(RUNS, max_size=6).map(lambda runs: np.concatenate([[], *runs]).astype(int))


def check_against_indexing(index: np.ndarray, axis: int) -> None:
    table, weights = np.random.default_rng(0).normal(size=(2, *[ENTRIES] * 3)).astype(np.float32)
    weights = np.take(weights, index, axis)
    ours, grad = jax.jit(partial(pulled, index=index, axis=axis))(table, weights)
    np.testing.assert_array_equal(ours, np.take(table, index, axis))
    want = np.zeros(table.shape)
    np.add.at(np.moveaxis(want, axis, 0), index, np.moveaxis(weights, axis, 0))
    np.testing.assert_allclose(grad, want, rtol=1e-5, atol=1e-5)


def pulled(table, weights, index, axis):
    """Return the entries and the gradient of their sum with these weights."""
    entries, pull = jax.vjp(lambda table: lookup(table, index, axis), table)
    return entries, pull(weights)[0]


@settings(max_examples=25)
@given(index=INDICES, axis=st.sampled_from([0, 1, 2, -1]))
def test_equals_indexing(index, axis):
    check_against_indexing(index, axis)


def test_an_index_of_many_runs_is_multiplied_out():
    index = np.tile([0, 5, 2], MAX_RUNS)
    check_against_indexing(index, axis=1)
    lowered = jax.jit(lambda table: lookup(table, index)).lower(jnp.zeros((2, ENTRIES)))
    assert "dot_general" in lowered.as_text()


@pytest.mark.parametrize("bad", [-1, ENTRIES])
def test_places_outside_the_table_are_refused(bad):
    with pytest.raises(ValueError, match="the table has 7 entries"):
        lookup(jnp.zeros((2, ENTRIES)), np.array([0, bad]))


def scatters_back(function, *arguments) -> bool:
    """Return whether the gradient of the function's sum of squares scatters."""

    def total(*arguments):
        return sum((x**2).sum() for x in jax.tree.leaves(function(*arguments)))

    lowered = jax.jit(jax.grad(total)).lower(*arguments)
    texts = str(lowered.as_text()), str(lowered.compile().as_text())
    return any(re.search(r"\bscatter\b", text) for text in texts)


TABLE = jnp.ones((2, 20, 4))
TERMS = [
    RelativeTerm(TABLE, "clip", TABLE),
    RelativeTerm(TABLE[:, 1:], "zero", None, two_sided=True),
    T5Term(TABLE[..., 0], T5Bias(20, 90)),
    T5Term(TABLE[..., 0], T5Bias(20, 90, two_sided=True)),
]


@pytest.mark.parametrize("term", TERMS, ids=lambda term: type(term).__name__)
@pytest.mark.parametrize("falling", [False, True], ids=["rising", "falling"])
def test_the_gradient_of_distances_does_not_scatter(term: Term, falling):
    distances = np.arange(-70, 200)[:: -1 if falling else 1]
    assert not scatters_back(lambda term: term.by_distance(distances), term)


def test_the_gradient_of_many_runs_does_not_scatter_but_that_of_indexing_does():
    index = np.tile([0, 5, 2], MAX_RUNS)
    assert not scatters_back(lambda table: lookup(table, index), TABLE)
    assert scatters_back(lambda table: table[:, index], TABLE)
