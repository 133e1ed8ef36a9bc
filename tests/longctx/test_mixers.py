"""The baselines, held to their equations token by token in float64, and to what a mixer owes."""

from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention.places import Places
from longctx.mixer import MixerConfig
from longctx.mixers import LSTM, CausalConv, LinearAttention

MODEL, LENGTH = 16, 40
pytestmark = pytest.mark.usefixtures("quick_compilation")
EXTREMES = (CausalConv(kernel=1), CausalConv(kernel=50), LinearAttention(heads=1, chunk=1))
CONFIGS = [*LSTM.small(), *CausalConv.small(), *LinearAttention.small(), *EXTREMES]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=str)
EVERYWHERE = Places()
# Documents of 9, 1 and 22 tokens, with padding before, between, inside and after.
SEGMENTS = np.repeat([-1, 3, -1, 5, 7, -1, 7, -1], [2, 9, 1, 1, 15, 1, 7, 4])
MIXED = Places(
    positions=jnp.array([np.where(SEGMENTS < 0, -1, np.arange(LENGTH)), np.arange(LENGTH)]),
    segments=jnp.array([SEGMENTS, np.repeat([0, 1], [30, 10])]),
)


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def lstm(config, p, x):
    width = p["out"]["kernel"].shape[0]
    h = c = np.zeros(width)
    y = []
    for token in x:
        i, f, g, o = np.split(token @ p["inputs"]["kernel"] + h @ p["recurrent"] + p["bias"], 4)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        y.append(h @ p["out"]["kernel"])
    return np.array(y)


def conv(config, p, x):
    y = []
    for t in range(len(x)):
        u = sum(p["filter"][j] * x[t - j] for j in range(min(config.kernel, t + 1)))
        gated = u @ p["value"]["kernel"] * sigmoid(u @ p["gate"]["kernel"])
        y.append(gated @ p["out"]["kernel"])
    return np.array(y)


def linear(config, p, x):
    q, k, v = (np.split(x @ p[name]["kernel"], config.heads, axis=1) for name in "qkv")
    heads = []
    for q_head, k_head, v_head in zip(q, k, v, strict=True):
        scores = np.tril(elu_plus_one(q_head) @ elu_plus_one(k_head).T)
        heads.append(scores @ v_head / scores.sum(axis=1, keepdims=True))
    return np.concatenate(heads, axis=1) @ p["out"]["kernel"]


def elu_plus_one(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1


EQUATIONS = {LSTM: lstm, CausalConv: conv, LinearAttention: linear}


class Compiled:
    """A layer whose pass is compiled once for each shape; no parameter has a special value."""

    def __init__(self, config: MixerConfig, dtype=jnp.float32):
        self.config = config
        self.layer = config.build(MODEL, dtype, nnx.Rngs(0))
        graphdef, params = nnx.split(self.layer)
        key = jax.random.key(1)
        self.params = jax.tree.map(lambda p: p + 0.1 * jax.random.normal(key, p.shape), params)
        self.apply = lambda params, x, at, state: nnx.merge(graphdef, params)(x, at, state)
        self._call = jax.jit(self.apply)

    def __call__(self, x, at=EVERYWHERE, state=None):
        return self._call(self.params, x, at, state)

    def expected(self, x, at=EVERYWHERE, params=None):
        """Return the equation's outputs: every document alone, padding left out, 0 there."""
        leaves, structure = jax.tree.flatten(self.params)
        exact = params or [np.asarray(leaf, np.float64) for leaf in leaves]
        named = nnx.to_pure_dict(jax.tree.unflatten(structure, exact))
        equation, x = EQUATIONS[type(self.config)], np.asarray(x, np.float64)
        segments = np.zeros(x.shape[:2], int) if at.segments is None else np.array(at.segments)
        segments = np.broadcast_to(segments, x.shape[:2]).copy()
        if at.positions is not None:
            segments[np.broadcast_to(at.positions, x.shape[:2]) < 0] = -1
        y = np.zeros(x.shape)
        for row, column in enumerate(segments):
            for document in set(column) - {-1}:
                these = (row, column == document)
                y[these] = equation(self.config, named, x[these])
        return y


build = cache(Compiled)


def inputs(rows: int = 2, length: int = LENGTH, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (rows, length, MODEL))


def dtypes(state):
    return [leaf.dtype for leaf in jax.tree.leaves(state)]


@every_config
def test_the_pass_is_the_equation(config):
    model, x = build(config), inputs()
    y, nothing = model(x)
    assert nothing is None
    np.testing.assert_allclose(y, model.expected(x), atol=1e-5)


@every_config
def test_any_chunking_gives_the_whole(config):
    model, x = build(config), inputs()
    state, parts = model.layer.init_state(2, LENGTH), []
    for start, end in pairwise((0, 1, 2, 15, LENGTH)):
        part, state = model(x[:, start:end], state=state)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), model(x)[0], atol=1e-5)


@every_config
def test_token_by_token_in_a_scan_gives_the_whole(config):
    model, x = build(config), inputs()

    def step(state, token):
        y, state = model(token[:, None], state=state)
        return state, y[:, 0]

    _, y = jax.lax.scan(step, model.layer.init_state(2, 1), x.swapaxes(0, 1))
    np.testing.assert_allclose(y.swapaxes(0, 1), model(x)[0], atol=1e-5)


@every_config
@settings(max_examples=15)
@given(st.lists(st.booleans(), min_size=2 * LENGTH, max_size=2 * LENGTH))
def test_padding_anywhere_leaves_the_state_as_it_was(config, drawn):
    """Cut where the padding is, too: chunks of 15 and 25 tokens."""
    model, x, real = build(config), inputs(), np.reshape(drawn, (2, LENGTH))
    positions = jnp.where(real, real.cumsum(axis=1) - 1, -1)
    expected = model.expected(x, Places(positions))
    np.testing.assert_allclose(model(x, Places(positions))[0], expected, atol=1e-5)
    state = model.layer.init_state(2, LENGTH)
    first, state = model(x[:, :15], Places(positions[:, :15]), state)
    second, _ = model(x[:, 15:], Places(positions[:, 15:]), state)
    np.testing.assert_allclose(jnp.concatenate([first, second], axis=1), expected, atol=1e-5)


@every_config
@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=40, max_size=40))
def test_packed_documents_are_the_documents_apart(config, drawn):
    """Documents and stretches of padding of random lengths; the first 40 tokens of them."""
    names = [-1 if padding else name for name, (_, padding) in enumerate(drawn)]
    segments = jnp.array([np.repeat(names, [size for size, _ in drawn])[:LENGTH], SEGMENTS])
    model, x, at = build(config), inputs(), Places(segments=segments)
    np.testing.assert_allclose(model(x, at)[0], model.expected(x, at), atol=1e-5)


@every_config
def test_padding_inside_a_packed_document_does_not_end_it(config):
    model, x = build(config), inputs()
    np.testing.assert_allclose(model(x, MIXED)[0], model.expected(x, MIXED), atol=1e-5)


@every_config
def test_one_row_of_places_serves_the_batch(config):
    model, x = build(config), inputs()
    once = Places(MIXED.positions[:1], MIXED.segments[:1])
    twice = jax.tree.map(lambda a: jnp.repeat(a, 2, axis=0), once)
    np.testing.assert_array_equal(model(x, once)[0], model(x, twice)[0])
    state, at = model.layer.init_state(2, LENGTH), Places(MIXED.positions[:1])
    y, _ = model(x, at, state)
    np.testing.assert_allclose(y, model.expected(x, at), atol=1e-5)


@every_config
def test_packed_documents_cannot_continue_a_state(config):
    model = build(config)
    with pytest.raises(ValueError, match="feed each document in its own row"):
        model.layer(inputs(), MIXED, model.layer.init_state(2, LENGTH))


@every_config
@pytest.mark.parametrize("at", [Places(), MIXED], ids=["plain", "packed"])
def test_changing_the_future_changes_nothing(config, at):
    model, x = build(config), inputs()
    before, _ = model(x, at)
    after, _ = model(x.at[:, 25:].add(1.0), at)
    np.testing.assert_array_equal(before[:, :25], after[:, :25])
    assert not np.allclose(before[:, 25:], after[:, 25:])


@every_config
def test_batch_rows_do_not_see_each_other(config):
    model, x = build(config), inputs()
    before, after = model(x)[0], model(x.at[1].add(1.0))[0]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.allclose(before[1], after[1])


@every_config
def test_the_gradient_is_the_slope_of_the_equation(config):
    """Along random directions of each parameter and of the inputs, by differences in float64."""
    model, x, rng = build(config), inputs(), np.random.default_rng(0)
    weights = rng.normal(size=x.shape)

    def loss(params, x):
        return (weights * model.apply(params, x, MIXED, None)[0]).sum()

    grads = jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1)))(model.params, x))
    point = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves((model.params, x))]
    for place, grad in enumerate(grads):
        assert np.isfinite(grad).all()
        assert np.any(grad)
        direction = rng.normal(size=grad.shape)

        def along(step, place=place, direction=direction):
            *params, moved = [
                leaf + step * direction if i == place else leaf for i, leaf in enumerate(point)
            ]
            return (weights * model.expected(moved, MIXED, params)).sum()

        slope = (along(1e-5) - along(-1e-5)) / 2e-5
        np.testing.assert_allclose((grad * direction).sum(), slope, rtol=1e-3, atol=1e-3)


@every_config
def test_a_row_of_padding_gives_zeros_and_takes_no_gradient(config):
    model, x = build(config), inputs()
    at = Places(jnp.full((2, LENGTH), -1))

    def loss(params, x):
        y, state = model.apply(params, x, at, model.layer.init_state(2, LENGTH))
        return (y + 1.0).sum() ** 2 + sum(leaf.sum() for leaf in jax.tree.leaves(state))

    y, _ = model(x, at)
    np.testing.assert_array_equal(y, 0.0)
    for grad in jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1)))(model.params, x)):
        np.testing.assert_array_equal(grad, 0.0)


@every_config
def test_the_state_stays_as_small_as_it_is(config):
    layer = build(config).layer
    small, large = layer.init_state(2, 1), layer.init_state(2, 1_000_000)
    assert jax.tree.map(jnp.shape, small) == jax.tree.map(jnp.shape, large)
    assert layer.grow_state(small, 1_000_000) is small
    _, after = build(config)(inputs(), state=small)
    assert jax.tree.map(jnp.shape, small) == jax.tree.map(jnp.shape, after)
    assert dtypes(small) == dtypes(after)


@every_config
def test_bfloat16_stays_near_float32(config):
    rough, x = Compiled(config, jnp.bfloat16), inputs().astype(jnp.bfloat16)
    y, _ = rough(x, MIXED)
    assert y.dtype == jnp.bfloat16
    state = rough.layer.init_state(2, LENGTH)
    _, after = rough(x, state=state)
    assert dtypes(state) == dtypes(after)
    exact = rough.expected(x, MIXED)
    assert np.abs(np.asarray(y, np.float64) - exact).max() <= 2e-2 * np.abs(exact).max()


def test_a_fresh_cell_remembers():
    bias = np.split(LSTM().build(MODEL, jnp.float32, nnx.Rngs(0)).bias[...], 4)
    assert [set(map(float, part)) for part in bias] == [{0.0}, {1.0}, {0.0}, {0.0}]


def test_gradients_of_cells_sum_in_float32():
    """The same token 4096 times: in bfloat16 the sum over steps would stop growing."""
    x = jnp.broadcast_to(inputs(1, 1), (1, 4096, MODEL))

    def grad(dtype):
        model = Compiled(LSTM(), dtype)

        def loss(params):
            return model.apply(params, x, Places(), None)[0].astype(jnp.float32).sum()

        return np.asarray(jax.jit(jax.grad(loss))(model.params)["recurrent"][...])

    exact, rough = grad(jnp.float32), grad(jnp.bfloat16)
    assert np.abs(rough - exact).max() <= 5e-2 * np.abs(exact).max()


@pytest.mark.parametrize(("kernel", "layers"), [(1, 3), (4, 1), (4, 3)])
def test_layers_of_convolution_see_what_the_paper_says(kernel, layers):
    model, x, t = build(CausalConv(kernel=kernel)), inputs(1), 20

    def stack(x):
        for _ in range(layers):
            x, _ = model(x)
        return x[0, t].sum()

    slope = jax.jit(jax.grad(stack))(x)[0]
    seen = [place for place in range(LENGTH) if np.any(slope[place])]
    assert seen == list(range(t - layers * (kernel - 1), t + 1))


@pytest.mark.parametrize("cut", [16_384, 4_096, 2_049])
def test_sums_over_16k_equal_tokens_do_not_saturate(cut):
    """One token 8192 times, then another, in bfloat16, against float64; fed `cut` at a time."""
    model, half = Compiled(LinearAttention(heads=4), jnp.bfloat16), 8192
    x = jnp.repeat(inputs(1, 2).astype(jnp.bfloat16), half, axis=1)
    state, parts = model.layer.init_state(1, 2 * half), []
    for start in range(0, 2 * half, cut):
        part, state = model(x[:, start : start + cut], state=state)
        parts.append(part)
    y = np.concatenate(parts, axis=1)[0].astype(np.float64)

    layer = nnx.merge(nnx.graphdef(model.layer), model.params)
    pair = jnp.stack([x[0, 0], x[0, -1]])
    q, k, v = (
        np.asarray(f(pair), np.float64).reshape(2, 4, -1) for f in (layer.q, layer.k, layer.v)
    )
    q, k = elu_plus_one(q), elu_plus_one(k)
    np.testing.assert_allclose(state.z[0], half * k.sum(axis=0), rtol=1e-4)
    np.testing.assert_allclose(
        state.S[0], half * np.einsum("nhd,nhe->hde", k, v), rtol=1e-4, atol=1e-2
    )
    scores = np.einsum("hd,nhd->nh", q[1], k)[..., None]
    mean = ((scores * v).sum(axis=0) / scores.sum(axis=0)).reshape(-1)
    last = mean @ np.asarray(model.params["out"]["kernel"][...], np.float64)
    assert np.abs(y[-1] - last).max() <= 1e-2 * np.abs(last).max()


def test_features_that_vanish_leave_no_nan():
    model, x = build(LinearAttention(heads=4)), 1e4 * inputs()
    y, slope = jax.jit(jax.value_and_grad(lambda x: (model(x)[0] ** 2).sum()))(x)
    assert np.isfinite(y)
    assert np.isfinite(slope).all()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: LSTM(width=0), "at least 1 cell, not 0"),
        (lambda: CausalConv(kernel=0), "not kernel 0"),
        (lambda: CausalConv(width=-1), "width -1"),
        (lambda: LinearAttention(heads=0), "heads 0"),
        (lambda: LinearAttention(chunk=0), "chunk 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


@pytest.mark.parametrize("config", [LinearAttention(heads=3), LinearAttention(heads=4, width=0)])
def test_heads_must_divide_the_width(config):
    with pytest.raises(ValueError, match="must be a multiple of heads"):
        config.build(MODEL, jnp.float32, nnx.Rngs(0))


@pytest.mark.parametrize("family", [LSTM, CausalConv, LinearAttention])
def test_a_baseline_names_its_paper(family):
    assert family.paper[-4:].isdigit()
