"""Every implementation against the float32 reference: outputs, logsumexp and all gradients."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import (
    IMPLEMENTATIONS,
    DistanceTerm,
    Entries,
    Pattern,
    Places,
    SumTerm,
    attention,
    merge,
)
from kernels.attention.spec import Tile
from longctx.attention.patterns import Causal, Local


@partial(jax.tree_util.register_dataclass, data_fields=["entries"], meta_fields=["least"])
@dataclass(frozen=True)
class Tables(DistanceTerm):
    """Entries for the distances from `least` on, clipped at both ends."""

    entries: Entries
    least: int

    @property
    def adds_values(self):
        return self.entries.values is not None

    @property
    def span(self):
        return self.least, self.least + jax.tree.leaves(self.entries)[0].shape[1] - 1

    def by_distance(self, distances):
        index = np.clip(distances, *self.span) - self.least
        return jax.tree.map(lambda table: table[:, index], self.entries)


class Case(NamedTuple):
    """One call: sizes, pattern, the tables' (heads, distances, least), and what they hold."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    k_len: int
    dim: int
    pattern: Pattern
    tables: tuple[int, int, int] | None = None
    holds: str = "embeddings"
    documents: int = 1


CASES = [
    Case(2, 2, 2, 300, 300, 16, Causal()),
    Case(2, 2, 2, 300, 300, 16, Causal(), (2, 40, 0)),
    Case(1, 4, 2, 130, 333, 16, Causal(), (1, 500, 0), documents=3),
    Case(1, 2, 1, 257, 257, 8, Local(17), (2, 9, 0)),
    Case(1, 2, 2, 300, 300, 8, Local(200), (2, 300, -2), "bias embeddings", documents=2),
    Case(2, 4, 1, 5, 70, 16, Local(6), (4, 70, 0), "bias embeddings values"),
    Case(1, 1, 1, 1, 1, 8, Causal(), (1, 1, 0), "bias"),
    Case(1, 2, 1, 270, 290, 8, Causal(), (1, 33, -3), "bias values", documents=2),
    Case(1, 2, 2, 130, 130, 8, Causal(), (2, 33, 0), "values"),
]
pytestmark = pytest.mark.usefixtures("quick_compilation")
EXACT = [name for name in IMPLEMENTATIONS if name != "reference"]
CONSECUTIVE = {"row_blocks", "pallas_tpu", "pallas_gpu"}
"""Implementations that serve neither given positions nor terms that add to the values."""


def arrays(case: Case, dtype=jnp.float32) -> dict:
    keys = jax.random.split(jax.random.key(0), 6)
    q_shape = (case.batch, case.heads, case.q_len, case.dim)
    k_shape = (case.batch, case.kv_heads, case.k_len, case.dim)
    inputs = {
        "q": jax.random.normal(keys[0], q_shape, dtype),
        "k": jax.random.normal(keys[1], k_shape, dtype),
        "v": jax.random.normal(keys[2], k_shape, dtype),
    }
    if case.tables is not None:
        shape = case.tables[:2]
        bias = jax.random.normal(keys[4], shape)
        embeddings, values = jax.random.normal(keys[3], (2, *shape, case.dim))
        tables = {"embeddings": embeddings, "bias": bias, "values": values}
        inputs["entries"] = Entries(**{name: tables[name] for name in case.holds.split()})
    return inputs


def places(case: Case, explicit: bool) -> dict:
    """Return where the tokens stand: in documents of about equal lengths."""
    if not explicit and case.documents == 1:
        return {}
    k_at = Places()
    if explicit:
        k_at = k_at._replace(positions=11 + jnp.arange(case.k_len)[None])
    if case.documents > 1:
        segments = jnp.arange(case.k_len) * case.documents // case.k_len
        k_at = k_at._replace(segments=segments[None])
    return {"q_at": jax.tree.map(lambda x: x[:, case.k_len - case.q_len :], k_at), "k_at": k_at}


def run(case: Case, inputs: dict, implementation: str, explicit: bool):
    """Return (out, lse) and the gradients of a random weighting of both."""
    weights = jax.random.normal(jax.random.key(1), (case.batch, case.heads, case.q_len, case.dim))

    def weighted(inputs):
        term = None if case.tables is None else Tables(inputs["entries"], case.tables[2])
        out, lse = attention(
            inputs["q"], inputs["k"], inputs["v"], pattern=case.pattern, term=term,
            implementation=implementation, return_lse=True, **places(case, explicit),
        )  # fmt: skip
        return (out * weights).sum() + (lse * weights[..., 0]).sum(), (out, lse)

    with jax.default_matmul_precision("highest"):
        (_, results), grads = jax.jit(jax.value_and_grad(weighted, has_aux=True))(inputs)
    return results, grads


def relative_error(ours, theirs) -> float:
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return float(np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-6))


@pytest.mark.parametrize("explicit", [False, True], ids=["consecutive", "explicit"])
@pytest.mark.parametrize("implementation", EXACT)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(case, implementation, explicit):
    inputs = arrays(case)
    values = case.tables is not None and "values" in case.holds
    refuses = implementation in CONSECUTIVE and (explicit or values)
    if refuses or (implementation == "decode" and (not explicit or case.q_len > 8)):
        with pytest.raises(NotImplementedError):
            run(case, inputs, implementation, explicit)
        return
    (out, lse), grads = run(case, inputs, implementation, explicit)
    (want_out, want_lse), want_grads = run(case, inputs, "reference", explicit=False)
    np.testing.assert_allclose(out, want_out, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    assert grads.keys() == want_grads.keys()
    paths = jax.tree_util.tree_leaves_with_path(grads)
    for (path, ours), theirs in zip(paths, jax.tree.leaves(want_grads), strict=True):
        assert relative_error(ours, theirs) <= 1e-5, path


@pytest.mark.parametrize("implementation", ["blockwise", "row_blocks"])
def test_bfloat16_stays_near_the_float32_reference(implementation):
    case = CASES[1]
    inputs = arrays(case, jnp.bfloat16)
    (out, _), grads = run(case, inputs, implementation, explicit=False)
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), inputs)
    (want, _), want_grads = run(case, exact, "reference", explicit=False)
    assert out.dtype == jnp.bfloat16
    assert relative_error(out, want) <= 2e-2
    for ours, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(want_grads), strict=True):
        assert relative_error(ours, theirs) <= 2e-2


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_without_keys_is_zero_forward_and_backward(implementation):
    case = Case(1, 2, 2, 4, 6, 8, Causal(), (2, 3, 0), "bias embeddings values")
    inputs = arrays(case)
    k_at = Places(jnp.array([[-1, 5, 6, -1, 7, 8]]))
    q_at = Places(jnp.array([[3, 5, -1, 8]]))

    def weighted(inputs):
        out, lse = attention(
            inputs["q"], inputs["k"], inputs["v"], pattern=Causal(),
            term=Tables(inputs["entries"], 0), q_at=q_at, k_at=k_at,
            implementation=implementation, return_lse=True,
        )  # fmt: skip
        return (out**2).sum(), (out, lse)

    if implementation in CONSECUTIVE:
        with pytest.raises(NotImplementedError, match="consecutive"):
            weighted(inputs)
        return
    (_, (out, lse)), grads = jax.value_and_grad(weighted, has_aux=True)(inputs)
    for row in (0, 2):
        assert not np.any(out[0, :, row])
        assert np.all(np.isneginf(lse[0, :, row]))
        assert not np.any(grads["q"][0, :, row])
    for slot in (0, 3):
        assert not np.any(grads["k"][0, :, slot])
        assert not np.any(grads["v"][0, :, slot])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert np.any(out[0, :, 3])


def test_merge_joins_attention_over_two_sets_of_keys():
    inputs = arrays(Case(1, 2, 2, 3, 20, 8, Causal()))
    k_pos, q_at = jnp.arange(20)[None], Places(jnp.array([[2, 9, 30]]))

    def over(keys: slice):
        return attention(
            inputs["q"], inputs["k"][:, :, keys], inputs["v"][:, :, keys], pattern=Causal(),
            q_at=q_at, k_at=Places(k_pos[:, keys]), return_lse=True,
        )  # fmt: skip

    out, lse = merge(over(slice(0, 8)), over(slice(8, 20)))
    want_out, want_lse = over(slice(0, 20))
    np.testing.assert_allclose(out, want_out, atol=1e-6)
    np.testing.assert_allclose(lse, want_lse, atol=1e-6)
    nothing = (jnp.zeros((1, 2, 3, 8)), jnp.full((1, 2, 3), -jnp.inf))
    out, lse = merge(nothing, nothing)
    assert not np.any(out)
    assert np.all(np.isneginf(lse))


@settings(max_examples=60)
@given(
    pattern=st.one_of(st.just(Causal()), st.integers(1, 40).map(Local)),
    q_first=st.integers(0, 50),
    k_first=st.integers(0, 50),
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
)
def test_tiles_are_classified_as_looking_at_every_pair_would(
    pattern, q_first, k_first, rows, columns
):
    tile = (q_first, q_first + rows - 1, k_first, k_first + columns - 1)
    assert pattern.classify(*tile) == Pattern.classify(pattern, *tile)
    assert isinstance(pattern.classify(*tile), Tile)


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_calls_say_what_is_wrong():
    q, k = jnp.zeros((1, 4, 6, 8)), jnp.zeros((1, 3, 6, 8))
    with pytest.raises(ValueError, match="share 3 key heads"):
        attention(q, k, k, pattern=Causal())
    with pytest.raises(ValueError, match="one shape"):
        attention(q, k, k[:, :, :-1], pattern=Causal())
    with pytest.raises(ValueError, match="known are reference"):
        attention(q, q, q, pattern=Causal(), implementation="flash")
    with pytest.raises(ValueError, match="need explicit"):
        attention(q, q[:, :, :2], q[:, :, :2], pattern=Causal())
    some = Places(positions=jnp.arange(6)[None])
    with pytest.raises(ValueError, match="positions for queries and keys, or for neither"):
        attention(q, q, q, pattern=Causal(), q_at=some, k_at=Places())
    with pytest.raises(ValueError, match=r"\(1, 6\) of 5 keys must be \[1 or 1, 5\]"):
        attention(q, q[:, :, :5], q[:, :, :5], pattern=Causal(), q_at=some, k_at=some)
    long = jnp.zeros((1, 1, 4097, 8))
    with pytest.raises(NotImplementedError, match="up to 4096 keys"):
        attention(long, long, long, pattern=Causal(), implementation="row_blocks")


@pytest.mark.parametrize("implementation", EXACT)
def test_the_sum_of_terms_adds_up(implementation):
    case = Case(1, 2, 2, 7, 7, 8, Causal(), (2, 5, 0), "bias embeddings values")
    inputs = arrays(case)
    one = Tables(inputs["entries"], 0)
    two = Tables(inputs["entries"]._replace(values=None), 0)
    double = Tables(Entries(*(2 * x for x in inputs["entries"][:2]), inputs["entries"].values), 0)
    at = Places(jnp.arange(7)[None])
    call = partial(attention, inputs["q"], inputs["k"], inputs["v"], pattern=Causal(), q_at=at)
    want = call(term=double, implementation="reference")
    if implementation in CONSECUTIVE:
        at, one, double = Places(), two, Tables(double.entries._replace(values=None), 0)
        call = partial(attention, inputs["q"], inputs["k"], inputs["v"], pattern=Causal())
        want = call(term=double, implementation="reference")
    ours = call(term=SumTerm((one, two)), implementation=implementation)
    np.testing.assert_allclose(ours, want, atol=1e-5)
