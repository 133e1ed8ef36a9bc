"""Position schemes that act on the embeddings, against slow restatements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx.attention.layer import Attention
from longctx.attention.positions import ConcatenatedSinusoidal, Learned, Sinusoidal
from longctx.transformer import Transformer


class TestEmbeddings:
    """Schemes that act on the embeddings."""

    X = jax.random.normal(jax.random.key(0), (2, 3, 8))
    AT = np.array([[0, 1, 50]])

    def sinusoids(self, width: int, base: float) -> np.ndarray:
        want = np.zeros((3, width))
        for row, position in enumerate(self.AT[0]):
            for i in range(width // 2):
                phase = position / base ** (2 * i / width)
                want[row, i], want[row, width // 2 + i] = np.sin(phase), np.cos(phase)
        return want

    def test_sinusoids_are_the_papers(self):
        place = Sinusoidal().in_embedding(8, nnx.Rngs(0))
        assert place is not None
        got = place(self.X, jnp.array(self.AT))
        np.testing.assert_allclose(got, self.X + self.sinusoids(8, 10_000.0), atol=1e-5)

    @pytest.mark.parametrize("rows", [1, 2])
    def test_concatenated_sinusoids_are_mixed_in_by_one_matrix(self, rows):
        place = ConcatenatedSinusoidal(width=6, base=100.0).in_embedding(8, nnx.Rngs(0))
        (kernel,) = jax.tree.leaves(nnx.state(place))
        assert kernel.shape == (14, 8)
        got = place(self.X, jnp.repeat(jnp.array(self.AT), rows, axis=0))
        beside = np.broadcast_to(self.sinusoids(6, 100.0), (2, 3, 6))
        want = np.concatenate([self.X, beside], axis=-1) @ np.asarray(kernel)
        np.testing.assert_allclose(got, want, atol=1e-5)

    def test_learned_positions_are_rows_of_a_table_as_large_as_the_tokens(self):
        place = Learned(length=51).in_embedding(8, nnx.Rngs(0))
        (table,) = jax.tree.leaves(nnx.state(place))
        assert table.shape == (51, 8)
        assert np.std(table) * 8**0.5 == pytest.approx(1.0, abs=0.1)
        want = self.X + np.asarray(table)[self.AT] * 8**0.5
        np.testing.assert_allclose(place(self.X, jnp.array(self.AT)), want, atol=1e-6)

    def test_a_position_past_the_table_is_nan_and_padding_is_not(self):
        graphdef, params = nnx.split(Learned(length=50).in_embedding(8, nnx.Rngs(0)))

        def call(params, at):
            return nnx.merge(graphdef, params)(self.X, jnp.array([at]))

        got = call(params, [49, 50, -1])
        assert np.isfinite(got[:, [0, 2]]).all()
        assert np.isnan(got[:, 1]).all()
        (grad,) = jax.tree.leaves(jax.grad(lambda p: (call(p, [49, 3, -1]) ** 2).sum())(params))
        assert np.isfinite(grad).all()
        assert np.flatnonzero(np.any(grad, axis=1)).tolist() == [0, 3, 49]

    def test_a_model_refuses_inputs_longer_than_the_table(self):
        mixer = Attention(heads=2, position=Learned(length=5))
        model = Transformer(layers=1, model=8, hidden=8, mixer=mixer).build(7, jnp.float32, 0)
        assert jax.eval_shape(model, jnp.zeros((1, 5), jnp.int32))[0].shape == (1, 5, 7)
        with pytest.raises(ValueError, match="6 tokens, but the learned positions end after 5"):
            model(jnp.zeros((1, 6), jnp.int32))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Sinusoidal().in_embedding(9, nnx.Rngs(0)), "even model width, not 9"),
        (lambda: Sinusoidal(base=1.0), "base above 1, not 1.0"),
        (lambda: ConcatenatedSinusoidal(width=5), "positive even width, not 5"),
        (lambda: ConcatenatedSinusoidal(width=0), "positive even width, not 0"),
        (lambda: ConcatenatedSinusoidal(base=0.5), "base above 1, not 0.5"),
        (lambda: Learned(length=0), "length of at least 1, not 0"),
    ],
)
def test_bad_configs_say_what_is_wrong(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()
