"""Rotary embeddings and their scalings, against slow restatements and golden values."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places
from longctx.attention.layer import Attention
from longctx.attention.positions import RoPE, rope_scaling
from longctx.attention.positions.rope_scaling import NTK, DynamicNTK, LinearScaling, Llama3, YaRN
from longctx.variants import members

GOLDEN = Path(__file__).parent / "golden"
SCALINGS = [s.scaling for s in RoPE.small()]
GOLDEN_ROPE = json.loads((GOLDEN / "rope.json").read_text())


class TestRoPE:
    """Rotations, and how they are scaled."""

    @pytest.mark.parametrize("scaling", SCALINGS, ids=str)
    def test_scores_are_functions_of_distance(self, scaling):
        place = RoPE(base=100.0, scaling=scaling).in_attention(1, 8, nnx.Rngs(0))
        q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

        def score(i: int, j: int) -> float:
            at = jnp.array([[i]]), jnp.array([[j]])
            return float((place.rotate(q, at[0]) * place.rotate(k, at[1])).sum())

        assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-4)
        assert abs(score(7, 3) - score(7, 4)) > 1e-3

    @pytest.mark.parametrize("scaling", SCALINGS, ids=str)
    def test_halves_are_rotated(self, scaling):
        place = RoPE(base=100.0, scaling=scaling).in_attention(1, 8, nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(0), (1, 1, 1, 8))
        angle = 5 * scaling.frequencies(100.0, 8)
        pairs = np.asarray(x[0, 0, 0, :4]) + 1j * np.asarray(x[0, 0, 0, 4:])
        want = scaling.magnitude * pairs * np.exp(1j * angle)
        got = place.rotate(x, jnp.array([[5]]))[0, 0, 0]
        np.testing.assert_allclose(got, np.concatenate([want.real, want.imag]), atol=1e-5)

    @pytest.mark.parametrize("scaling", SCALINGS, ids=str)
    def test_keys_rotated_early_are_those_rotated_late(self, scaling):
        """A cache holds keys from when the sequence was short."""
        place = RoPE(base=100.0, scaling=scaling).in_attention(1, 4, nnx.Rngs(0))
        x, at = jax.random.normal(jax.random.key(0), (1, 1, 60, 4)), jnp.arange(60)[None]
        early = place.rotate(x[:, :, :5], at[:, :5])
        np.testing.assert_array_equal(place.rotate(x, at)[:, :, :5], early)

    def test_phases_are_float32_for_bfloat16_inputs(self):
        place = RoPE().in_attention(1, 2, nnx.Rngs(0))
        x = jnp.ones((1, 1, 1, 2), jnp.bfloat16)
        got = place.rotate(x, jnp.array([[1001]])).astype(jnp.float32)[0, 0, 0]
        want = [np.cos(1001) - np.sin(1001), np.cos(1001) + np.sin(1001)]
        np.testing.assert_allclose(got, want, atol=1e-2)

    def test_values_are_not_rotated(self):
        """A single token sees its own value alone, wherever it stands."""
        layer = Attention(heads=2, position=RoPE()).build(8, jnp.float32, nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(0), (1, 1, 8))
        call = jax.jit(lambda position: layer(x, Places(position))[0])
        here, there = call(jnp.array([[0]])), call(jnp.array([[1000]]))
        np.testing.assert_allclose(here, there, atol=1e-6)

    @pytest.mark.parametrize("case", GOLDEN_ROPE, ids=lambda case: case["scaling"])
    def test_frequencies_are_the_golden_ones(self, case):
        scaling = getattr(rope_scaling, case["scaling"])(**case["fields"])
        found = scaling.frequencies(case["base"], case["dim"])
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, case["frequencies"], rtol=5e-7)
        assert scaling.magnitude == pytest.approx(case["magnitude"], rel=1e-12)

    def test_every_scaling_has_golden_values(self):
        known = set(members(rope_scaling.RopeScaling)) - {"NoScaling"}
        assert known == {case["scaling"] for case in GOLDEN_ROPE}

    @pytest.mark.parametrize(
        "scaling",
        [LinearScaling(1.0), NTK(1.0), DynamicNTK(9, 10, 3.0), Llama3(1.0), YaRN(1.0)],
        ids=str,
    )
    def test_a_factor_of_1_changes_nothing(self, scaling):
        plain = 10_000.0 ** (-np.arange(8) / 8)
        np.testing.assert_allclose(scaling.frequencies(10_000.0, 16), plain, rtol=1e-12)
        assert scaling.magnitude == 1.0

    def test_yarn_keeps_fast_pairs_and_divides_slow_ones_once(self):
        ratio = YaRN(factor=8.0, trained_length=512).frequencies(1e4, 32) / 1e4 ** (
            -np.arange(16) / 16
        )
        np.testing.assert_allclose(ratio[:2], 1.0)
        np.testing.assert_allclose(ratio[-4:], 1 / 8)
        assert (np.diff(ratio) <= 0).all()
        assert ((ratio > 1 / 8) & (ratio < 1)).any()

    @pytest.mark.parametrize(("length", "kept"), [(1, 0.25), (10**9, 1.0)])
    def test_yarn_is_plain_where_all_pairs_are_slow_or_fast(self, length, kept):
        found = YaRN(factor=4.0, trained_length=length).frequencies(100.0, 16)
        ratio = found / 100.0 ** (-np.arange(8) / 8)
        np.testing.assert_allclose(ratio[1:], kept)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: RoPE().in_attention(1, 7, nnx.Rngs(0)), "even head width, not 7"),
        (lambda: RoPE(base=1.0), "base above 1, not 1.0"),
        (lambda: RoPE(scaling=NTK()).in_attention(1, 2, nnx.Rngs(0)), "at least 4, not 2"),
        (lambda: LinearScaling(factor=0.5), "LinearScaling needs a factor of at least 1, not 0.5"),
        (lambda: NTK(factor=float("nan")), "NTK needs a factor of at least 1, not nan"),
        (lambda: DynamicNTK(trained_length=0), "trained_length of at least 1, not 0"),
        (lambda: DynamicNTK(factor=0.9), "factor of at least 1, not 0.9"),
        (lambda: Llama3(factor=0.9), "factor of at least 1, not 0.9"),
        (lambda: Llama3(low=4.0), "0 < low < high, not 4.0 and 4.0"),
        (lambda: YaRN(factor=0.0), "factor of at least 1, not 0.0"),
        (lambda: YaRN(beta_slow=0.0), "0 < beta_slow < beta_fast, not 0.0 and 32.0"),
    ],
)
def test_bad_configs_say_what_is_wrong(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()
