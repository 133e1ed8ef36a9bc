"""What every mixer owes, tested on every mixer: a new variant joins with one line in VARIANTS."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import NoPosition, RelativeEmbedding, RoPE, Sinusoidal
from longctx.transformer import Transformer

VARIANTS = {
    "none": Attention(heads=4, position=NoPosition()),
    "sinusoidal": Attention(heads=4, position=Sinusoidal()),
    "rope": Attention(heads=4, position=RoPE()),
    "relative": Attention(heads=4, position=RelativeEmbedding(max_distance=9)),
    "relative_zero_shared": Attention(
        heads=4, position=RelativeEmbedding(max_distance=9, per_head=False, beyond="zero")
    ),
    "gqa": Attention(heads=4, kv_heads=2, position=RelativeEmbedding(max_distance=64)),
    "mqa_rope": Attention(heads=4, kv_heads=1, position=RoPE(), qk_norm=True),
    "local": Attention(heads=4, pattern=Local(5), position=RelativeEmbedding(max_distance=4)),
    "local_rope": Attention(heads=4, pattern=Local(11), position=RoPE()),
    "blockwise": Attention(
        heads=4, position=RelativeEmbedding(max_distance=9), implementation="blockwise"
    ),
}
TRANSLATION_INVARIANT = [name for name in VARIANTS if name != "sinusoidal"]
LENGTH, VOCAB = 40, 13


class Compiled:
    """A model whose pass is compiled once for each shape."""

    def __init__(self, config: Transformer, dtype=jnp.float32):
        self.model = config.build(VOCAB, dtype, seed=0)
        graphdef, self.params = nnx.split(self.model)
        self._call = jax.jit(lambda p, x, at, state: nnx.merge(graphdef, p)(x, at, state))
        self.init_state, self.grow_state = self.model.init_state, self.model.grow_state

    def __call__(self, x, at=Places(), state=None):
        return self._call(self.params, x, at, state)


@cache
def build(name: str) -> Compiled:
    return Compiled(Transformer(layers=2, model=16, hidden=32, mixer=VARIANTS[name], dropout=0.0))


def tokens(rows: int = 2, seed: int = 0) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, LENGTH), 0, VOCAB)


every_variant = pytest.mark.parametrize("name", VARIANTS)


@every_variant
def test_changing_the_future_changes_nothing(name):
    x = tokens()
    changed = x.at[:, 25:].set((x[:, 25:] + 1) % VOCAB)
    before, _ = build(name)(x)
    after, _ = build(name)(changed)
    assert jnp.array_equal(before[:, :25], after[:, :25])
    assert not jnp.array_equal(before[:, 25:], after[:, 25:])


@every_variant
@pytest.mark.parametrize("cuts", [(1, 2), (19, 20, 21, 39)], ids=str)
def test_any_chunking_gives_the_whole(name, cuts):
    x, model = tokens(), build(name)
    whole, nothing = model(x)
    assert nothing is None
    state, parts = model.init_state(2, LENGTH), []
    for start, end in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        part, state = model(x[:, start:end], state=state)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-5)
    np.testing.assert_array_equal(state.length, LENGTH)


@every_variant
def test_rows_of_different_lengths_continue_alone(name):
    """Right-padded prompts of 7 and 20 tokens, then 10 more each, against each row by itself."""
    x, model = tokens(), build(name)
    lengths = (7, 20)
    at = jnp.stack([jnp.where(jnp.arange(20) < n, jnp.arange(20), -1) for n in lengths])
    first, state = model(x[:, :20], Places(at), model.init_state(2, LENGTH))
    more = jnp.stack([x[row, n : n + 10] for row, n in enumerate(lengths)])
    second, _ = model(more, state=state)
    for row, n in enumerate(lengths):
        alone, _ = model(x[row : row + 1, : n + 10])
        np.testing.assert_allclose(first[row, :n], alone[0, :n], atol=1e-5)
        np.testing.assert_allclose(second[row], alone[0, n:], atol=1e-5)


@pytest.mark.parametrize("name", TRANSLATION_INVARIANT)
def test_shifting_all_positions_changes_nothing(name):
    x, model = tokens(), build(name)
    plain, _ = model(x)
    shifted, _ = model(x, Places(1000 + jnp.arange(LENGTH)[None]))
    np.testing.assert_allclose(shifted, plain, atol=2e-5)


def test_sinusoids_do_see_a_shift():
    x, model = tokens(), build("sinusoidal")
    assert not np.allclose(
        model(x)[0], model(x, Places(1000 + jnp.arange(LENGTH)[None]))[0], atol=1e-2
    )


@every_variant
def test_batch_rows_do_not_see_each_other(name):
    x = tokens()
    changed = x.at[1].set((x[1] + 1) % VOCAB)
    before, after = build(name)(x)[0], build(name)(changed)[0]
    np.testing.assert_array_equal(before[0], after[0])


@every_variant
def test_every_parameter_gets_a_gradient(name):
    graphdef, params = nnx.split(build(name).model)

    def loss(params):
        return (nnx.merge(graphdef, params)(tokens())[0] ** 2).sum()

    for path, grad in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params)):
        assert np.isfinite(grad).all(), path
        assert np.any(grad), path


@pytest.mark.parametrize("window", [1, 5])
def test_a_window_counts_the_query_itself(window):
    """In one layer, output t depends on exactly the `window` tokens up to t."""
    mixer = Attention(heads=2, pattern=Local(window), position=NoPosition())
    config = Transformer(layers=1, model=16, hidden=32, mixer=mixer, dropout=0.0)
    model = Compiled(config)
    x, t = tokens(1), 20
    plain = model(x)[0][0, t]
    seen = []
    for place in range(LENGTH):
        changed = x.at[0, place].set((x[0, place] + 1) % VOCAB)
        if not jnp.array_equal(model(changed)[0][0, t], plain):
            seen.append(place)
    assert seen == list(range(t - window + 1, t + 1))


def test_a_full_cache_is_nan_and_not_quietly_wrong():
    x, model = tokens(), build("rope")
    state = model.init_state(2, LENGTH - 1)
    _, state = model(x[:, : LENGTH - 1], state=state)
    logits, _ = model(x[:, LENGTH - 1 :], state=state)
    assert np.isnan(logits).all()


def test_a_grown_cache_goes_on_as_before():
    x = tokens()
    for name in ("relative", "local"):
        model = build(name)
        whole, _ = model(x)
        _, state = model(x[:, :20], state=model.init_state(2, 20))
        rest, _ = model(x[:, 20:], state=model.grow_state(state, LENGTH))
        np.testing.assert_allclose(rest, whole[:, 20:], atol=1e-5)


def test_a_local_cache_stays_small():
    model = build("local")
    slots = [state.k.shape[2] for state in model.init_state(1, 100_000).layers]
    assert slots == [5, 5]


def test_bfloat16_stays_near_float32():
    for name in ("relative", "mqa_rope", "blockwise"):
        config = Transformer(layers=2, model=16, hidden=32, mixer=VARIANTS[name], dropout=0.0)
        exact, _ = build(name)(tokens())
        rough, _ = Compiled(config, jnp.bfloat16)(tokens())
        assert rough.dtype == jnp.float32
        assert np.abs(rough - exact).max() <= 4e-2 * np.abs(exact).max()
