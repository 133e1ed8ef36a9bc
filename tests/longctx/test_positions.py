"""The formulas of position schemes, against slow restatements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places
from longctx.attention.positions import RelativeEmbedding, RoPE, Sinusoidal
from longctx.attention.positions.relative import RelativeTerm


@pytest.mark.parametrize("beyond", ["clip", "zero"])
@pytest.mark.parametrize("tables", [1, 2])
def test_relative_embedding_is_a_dot_product_by_distance(beyond, tables):
    q = jax.random.normal(jax.random.key(0), (1, 2, 6, 4))
    table = jax.random.normal(jax.random.key(1), (tables, 3, 4))
    q_pos, k_pos = jnp.array([[10, 11, 12, 13, 14, 15]]), jnp.array([[8, 14, 10]])
    scores = RelativeTerm(table, beyond).scores(q, Places(q_pos), Places(k_pos))
    for head in range(2):
        for i, query in enumerate(q_pos[0]):
            for j, key in enumerate(k_pos[0]):
                distance = int(query - key)
                if distance < 0:
                    continue
                row = table[head % tables, min(distance, 2)]
                row = jnp.zeros(4) if beyond == "zero" and distance > 2 else row
                np.testing.assert_allclose(scores[0, head, i, j], q[0, head, i] @ row, rtol=1e-5)


def test_rope_turns_scores_into_functions_of_distance():
    place = RoPE(base=100.0).in_attention(1, 8, nnx.Rngs(0))
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

    def score(i: int, j: int) -> float:
        return float((place.rotate(q, jnp.array([[i]])) * place.rotate(k, jnp.array([[j]]))).sum())

    assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-4)
    assert abs(score(7, 3) - score(7, 4)) > 1e-3
    np.testing.assert_allclose(place.rotate(q, jnp.array([[0]])), q)
    angle = 5 * 100.0 ** (-np.arange(4) / 4)
    first, second = q[0, 0, 0, :4], q[0, 0, 0, 4:]
    want = np.concatenate([first * np.cos(angle) - second * np.sin(angle),
                           second * np.cos(angle) + first * np.sin(angle)])  # fmt: skip
    np.testing.assert_allclose(place.rotate(q, jnp.array([[5]]))[0, 0, 0], want, atol=1e-5)


def test_rope_phases_are_float32_for_bfloat16_inputs():
    place = RoPE().in_attention(1, 2, nnx.Rngs(0))
    x = jnp.ones((1, 1, 1, 2), jnp.bfloat16)
    got = place.rotate(x, jnp.array([[1001]])).astype(jnp.float32)[0, 0, 0]
    want = [np.cos(1001) - np.sin(1001), np.cos(1001) + np.sin(1001)]
    np.testing.assert_allclose(got, want, atol=1e-2)


def test_sinusoids_are_the_papers():
    place = Sinusoidal().in_embedding(8, nnx.Rngs(0))
    assert place is not None
    got = place(jnp.zeros((1, 3, 8)), jnp.array([[0, 1, 50]]))[0]
    for row, position in enumerate((0, 1, 50)):
        for i in range(4):
            phase = position / 10_000 ** (2 * i / 8)
            assert float(got[row, i]) == pytest.approx(np.sin(phase), abs=1e-5)
            assert float(got[row, 4 + i]) == pytest.approx(np.cos(phase), abs=1e-5)


def test_bad_configs_say_what_is_wrong():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        RelativeEmbedding(max_distance=0)
    with pytest.raises(ValueError, match="even head width, not 7"):
        RoPE().in_attention(1, 7, nnx.Rngs(0))
    with pytest.raises(ValueError, match="even model width, not 9"):
        Sinusoidal().in_embedding(9, nnx.Rngs(0))
