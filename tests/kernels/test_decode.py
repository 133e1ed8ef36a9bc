"""Decoding over caches as they come: rings that went round, empty slots, padded rows."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention import Pattern, Places, attention
from kernels.platform import building_for
from longctx.attention.patterns import Causal, Local
from longctx.attention.positions.relative import RelativeTerm

pytestmark = pytest.mark.usefixtures("quick_compilation")
SLOTS = 300


def ring(last: int) -> jax.Array:
    """Return the position in each slot after token `last`: -1 where none has been."""
    slot = np.arange(SLOTS)
    return jnp.asarray(np.maximum(last - (last - slot) % SLOTS, -1))


def inputs(q_len: int = 1, kv_heads: int = 2) -> tuple:
    """Return (q, k, v, tables of embeddings and of values) for two rows and four heads."""
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (2, 4, q_len, 8))
    k, v = jax.random.normal(keys[1], (2, 2, kv_heads, SLOTS, 8))
    return q, k, v, *jax.random.normal(keys[2], (2, 4, 50, 8))


def call(pattern: Pattern, q_pos, k_pos, implementation: str, q, k, v, *tables):
    """Return a weighted sum of the results, and the results."""
    term = RelativeTerm(tables[0], "clip", *tables[1:]) if tables else None
    with jax.default_matmul_precision("highest"):
        out, lse = attention(
            q, k, v, pattern=pattern, term=term, q_at=Places(q_pos), k_at=Places(k_pos),
            implementation=implementation, return_lse=True,
        )  # fmt: skip
    weights = jax.random.normal(jax.random.key(1), out.shape)
    seen = jnp.where(jnp.isfinite(lse), lse, 0.0)
    return (out * weights).sum() + (seen * weights[..., 0]).sum(), (out, lse)


def check(pattern: Pattern, q_pos, k_pos, arrays: tuple, atol: float = 1e-5):
    """Hold decode to the reference, and return its results."""
    arguments = tuple(range(4, 4 + len(arrays)))

    def graded(implementation):
        graded = jax.value_and_grad(call, arguments, has_aux=True)
        graded = jax.jit(graded, static_argnums=(0, 3))  # a new one: platforms share no trace
        return graded(pattern, q_pos, k_pos, implementation, *arrays)

    want, ours = graded("reference"), graded("decode")
    with building_for("tpu", "TPU v6 lite"):
        sliced = graded("decode")
    for found in (ours, sliced):
        jax.tree.map(partial(np.testing.assert_allclose, atol=atol), found, want)
    return ours[0][1]


@pytest.mark.parametrize("tables", [0, 1, 2])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_rows_at_different_places(kv_heads, tables):
    arrays = inputs(q_len=3, kv_heads=kv_heads)[: 3 + tables]
    q_pos = jnp.array([[70, 71, 72], [280, 281, 282]])
    k_pos = jnp.stack([ring(72), ring(282)])
    check(Causal(), q_pos, k_pos, arrays)


def test_a_ring_that_has_gone_round_beside_one_that_is_almost_empty():
    arrays = inputs()
    k_pos = jnp.stack([ring(5 * SLOTS + 77), ring(3)])
    check(Causal(), jnp.array([[5 * SLOTS + 77], [3]]), k_pos, arrays)
    check(Local(40), jnp.array([[5 * SLOTS + 77], [3]]), k_pos, arrays)


def test_a_row_that_is_padding_is_zero_and_very_low_scores_count():
    q, k, v = inputs()[:3]
    k = jnp.full_like(k, -100.0)
    q_pos, k_pos = jnp.array([[-1], [30]]), jnp.stack([ring(0), ring(30)])
    arrays = jnp.full_like(q, 10.0), k, v
    out, lse = check(Causal(), q_pos, k_pos, arrays, atol=1e-3)  # scores are near -3000
    assert not np.any(out[0])
    assert np.all(np.isneginf(lse[0]))
    assert np.all(lse[1] < -2000)


class WithoutScores(RelativeTerm):
    """A term that must not be gathered."""

    def scores(self, q, q_at, k_at):
        return jnp.full((1, q.shape[1], 1, k_at.positions.shape[1]), jnp.nan)


jax.tree_util.register_dataclass(
    WithoutScores, data_fields=["table", "value_table"], meta_fields=["beyond", "two_sided"]
)


@pytest.mark.parametrize("place", [0, 5, SLOTS - 1, SLOTS, 3 * SLOTS + 7])
@pytest.mark.parametrize("in_turn", [True, False])
def test_slots_in_turn_are_not_gathered_on_a_tpu(place, in_turn):
    q, k, v, table, _ = inputs()
    q_at, k_pos = Places(jnp.array([[place], [-1]])), jnp.stack([ring(place), ring(3)])
    if not in_turn:
        k_pos = k_pos[:, ::-1]
    kwargs = {"pattern": Causal(), "q_at": q_at, "k_at": Places(k_pos)}
    want = attention(
        q, k, v, term=RelativeTerm(table, "zero"), implementation="reference", **kwargs
    )
    with building_for("tpu", "TPU v6 lite"):
        ours = attention(
            q, k, v, term=WithoutScores(table, "zero"), implementation="decode", **kwargs
        )
    if in_turn:
        np.testing.assert_allclose(ours, want, atol=1e-5)
    else:
        assert np.isnan(ours[0]).any()
