"""Transformer-XL: what training carries from batch to batch, across documents and seams."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from kernels.attention import Places
from longctx.attention.layer import Attention
from longctx.attention.patterns import Causal, Full, Local, Recurrent
from longctx.attention.positions import RelativeEmbedding, Sinusoidal
from longctx.data.batch import Batch
from longctx.mixers import TransformerXL
from longctx.train.state import TrainState
from longctx.train.step import make_step, summed_loss
from longctx.transformer import Transformer

ROWS, LENGTH, VOCAB = 2, 24, 11
XL = TransformerXL(heads=2, position=RelativeEmbedding(max_distance=9), pattern=Recurrent(6, 5))
pytestmark = pytest.mark.usefixtures("quick_compilation")


def build(mixer=XL, layers: int = 2):
    config = Transformer(layers=layers, model=8, hidden=8, mixer=mixer, dropout=0.0)
    return config.build(VOCAB, jnp.float32, seed=0)


def stream(seed: int = 0) -> tuple[jax.Array, jax.Array]:
    """Return tokens of two rows and the number of the document of each; seams at 8 and 16."""
    tokens = jax.random.randint(jax.random.key(seed), (ROWS, LENGTH), 0, VOCAB)
    ends = jnp.array([[5, 16, 99], [11, 13, 99]])
    number = (jnp.arange(LENGTH)[None, :, None] >= ends[:, None]).sum(axis=2)
    return tokens, number + jnp.array([[10], [20]])


def in_chunks(model, tokens, segments, size: int):
    state, parts = model.training_state(ROWS), []
    for start in range(0, LENGTH, size):
        part = slice(start, start + size)
        logits, state = model(tokens[:, part], Places(segments=segments[:, part]), state)
        parts.append(logits)
    return jnp.concatenate(parts, axis=1), state


@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 8)), 12])
@pytest.mark.parametrize(
    "mixer",
    [XL, replace(XL, pattern=Local(7)), replace(XL, position=Sinusoidal())],
    ids=["recurrent", "local", "sinusoidal"],
)
def test_documents_that_cross_seams_are_as_whole(mixer, size):
    """Also those that begin in the middle of a batch, or are over within one."""
    model, (tokens, segments) = build(mixer), stream()
    streamed, state = in_chunks(model, tokens, segments, size)
    for row in range(ROWS):
        for number in np.unique(segments[row]):
            own = np.flatnonzero(segments[row] == number)
            alone, _ = model(tokens[row : row + 1, own])
            np.testing.assert_allclose(streamed[row, own], alone[0], atol=1e-5)
    np.testing.assert_array_equal(state.segment, segments[:, -1])
    np.testing.assert_array_equal(state.length, (segments == segments[:, -1:]).sum(axis=1))


def test_without_what_was_carried_the_outputs_differ():
    model, (tokens, segments) = build(), stream()
    streamed, _ = in_chunks(model, tokens, segments, 8)
    alone, _ = model(tokens[:, 8:16], Places(segments=segments[:, 8:16]))
    assert np.abs(streamed[0, 8:16] - alone[0]).max() > 1e-2


def test_layers_without_a_state_see_the_batch_alone():
    local = Attention(heads=2, position=RelativeEmbedding(9))
    model, (tokens, segments) = build((local, XL)), stream()
    state = model.training_state(ROWS)
    assert state.layers[0] is None
    first = model(tokens[:, :8], Places(segments=segments[:, :8]), state)
    assert first[1].layers[0] is None
    plain, _ = model(tokens[:, :8], Places(segments=segments[:, :8]))
    np.testing.assert_allclose(first[0], plain, atol=1e-5)
    assert build(local).training_state(ROWS) is None


def batch(tokens, segments, part: slice) -> Batch:
    x, y = tokens[:, part], jnp.roll(tokens, -1, axis=1)[:, part]
    return Batch(x, y, np.ones(x.shape, np.float32), segments[:, part])  # pyright: ignore


@pytest.mark.parametrize("accumulate", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_step_goes_on_from_the_carry_without_a_gradient_into_it(accumulate):
    """The second step's loss and gradient are those of a pass over keys that are constants."""
    model, (tokens, segments) = build(), stream()
    graphdef, params = nnx.split(model)
    optimizer = optax.sgd(0.0)
    step = make_step(graphdef, optimizer, accumulate, seed=0)
    copy = jax.tree.map(jnp.copy, params)  # the step consumes what it is given
    state = TrainState.create(copy, optimizer, model.training_state(ROWS))
    state, _ = step(state, batch(tokens, segments, slice(0, 8)))
    second = batch(tokens, segments, slice(8, 16))

    carried = model(tokens[:, :8], Places(segments=segments[:, :8]), model.training_state(ROWS))[1]

    def loss(params):
        at = Places(segments=segments[:, 8:16])
        logits, _ = nnx.merge(graphdef, params)(tokens[:, 8:16], at, carried)
        return optax.softmax_cross_entropy_with_integer_labels(logits, second.targets).mean()

    want, grads = jax.value_and_grad(loss)(params)
    _, metrics = step(state, second)
    np.testing.assert_allclose(metrics.loss, want, rtol=1e-6)
    np.testing.assert_allclose(metrics.grad_norm, optax.tree.norm(grads), rtol=1e-5)
    alone = float(summed_loss(graphdef, params, second, None)) / 16
    assert abs(float(metrics.loss) - alone) > 1e-3


def test_what_has_no_window_is_refused():
    for pattern in (Causal(), Full(), Local(4, ahead=1)):
        with pytest.raises(ValueError, match="no window or sees ahead"):
            TransformerXL(pattern=pattern)
    with pytest.raises(ValueError, match="at least 1 token"):
        Recurrent(segment=0)
