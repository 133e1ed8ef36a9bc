"""Likelihood: the mean over note tokens, as computed slowly, piece by piece."""

from dataclasses import dataclass, replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from eval.likelihood import Likelihood
from longctx.attention.layer import Attention
from longctx.attention.positions import RelativeEmbedding
from longctx.data.base import DataConfig
from longctx.evaluator import Trained
from longctx.mixers import Routing
from longctx.train.config import Train
from longctx.transformer import Transformer
from music.chorales import Chorales

LENGTHS = (4, 60, 16, 28)


@dataclass(frozen=True)
class Pieces(DataConfig):
    """A few pieces of very different lengths."""

    lengths: tuple[int, ...] = LENGTHS

    def vocabulary(self):
        return Chorales().vocabulary()

    def sequences(self, split):
        draw = np.random.default_rng(len(split))
        return tuple(draw.integers(1, 48, length).astype(np.int32) for length in self.lengths)


@lru_cache(maxsize=1)
def trained() -> Trained:
    mixer = Attention(heads=2, position=RelativeEmbedding(max_distance=16))
    model = Transformer(layers=1, model=16, hidden=16, mixer=mixer)
    graphdef, params = nnx.split(model.build(48, jnp.float32, seed=3))
    # sharper than fresh parameters, so that context matters
    params = jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim > 1 else leaf, params)
    return Trained(graphdef, params, Pieces(), window=16, step=0)


@jax.jit
def _logits(params: nnx.State, tokens: jax.Array) -> jax.Array:
    return nnx.merge(trained().graphdef, params)(tokens)[0]


def logits(tokens: np.ndarray) -> np.ndarray:
    """Return a row's logits; it is filled up to one of two lengths, so that little compiles."""
    fill = (8 if len(tokens) <= 8 else 64) - len(tokens)
    padded = jnp.asarray(np.pad(tokens, (0, fill)))[None]
    return np.asarray(_logits(trained().params, padded)[0, : len(tokens)], np.float64)


def losses_of_whole_pieces(split: str) -> list[np.ndarray]:
    """Return each note token's loss in float64, given all that stands before it in its piece."""
    found = []
    for piece in Pieces().sequences(split):
        scores = logits(np.concatenate([[0], piece[:-1]]))
        log_sum = np.log(np.exp(scores).sum(axis=1))
        found.append(log_sum - scores[np.arange(len(piece)), piece])
    return found


def nll(**options) -> float:
    ((name, value),) = Likelihood(**options).run(trained())
    assert name == f"{options.get('split', 'valid')}/nll"
    return value


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("batch", [1, 3, 8])
def test_windows_longer_than_the_pieces_give_the_whole_pass(split, batch):
    """Weighted by tokens, not by pieces or batches."""
    losses = losses_of_whole_pieces(split)
    expected = np.concatenate(losses).mean()
    assert abs(expected - np.mean([piece.mean() for piece in losses])) > 1e-3
    assert nll(split=split, window=64, stride=64, batch=batch) == pytest.approx(expected, rel=1e-5)


def test_a_stride_does_not_matter_where_the_window_holds_the_piece():
    assert nll(window=64, stride=7) == pytest.approx(nll(window=64, stride=64), rel=1e-6)


def test_short_windows_are_windows_of_the_piece():
    """Restated token by token: what a window of 8 that advances by 4 sees."""
    losses = []
    for piece in Pieces().sequences("valid"):
        bounded = np.concatenate([[0], piece])
        for target in range(len(piece)):
            end = 8 if target < 8 else 8 + 4 * (1 + (target - 8) // 4)
            start = end - 8
            scores = logits(bounded[start : target + 1])[-1]
            losses.append(np.log(np.exp(scores).sum()) - scores[piece[target]])
    assert nll(window=8, stride=4) == pytest.approx(np.mean(losses), rel=1e-5)


def test_more_context_is_another_number():
    assert abs(nll(window=8, stride=8) - nll(window=64, stride=64)) > 1e-3


def test_the_default_is_the_training_window_and_half_of_it():
    assert Likelihood().geometry(trained()) == (16, 8)
    assert nll() == nll(window=16, stride=8)


def test_the_protocol_changes_with_the_data():
    ours = Likelihood().protocol(trained())
    other = Likelihood().protocol(replace(trained(), data=Pieces((4, 60, 16, 24))))
    assert ours["tokens"] == sum(LENGTHS)
    assert ours["data hash"] != other["data hash"]
    assert Likelihood(split="test").protocol(trained())["data hash"] != ours["data hash"]


def test_a_split_without_tokens_is_refused():
    with pytest.raises(ValueError, match="valid split holds no token"):
        list(Likelihood().run(replace(trained(), data=Pieces(()))))


@pytest.mark.parametrize("geometry", [{"window": 0}, {"stride": 0}], ids=str)
def test_a_zero_is_refused_and_not_taken_for_the_default(geometry):
    trained = Trained(None, None, Chorales(), window=16, step=0)  # pyright: ignore
    with pytest.raises(ValueError, match="stride must lie between 1"):
        list(Likelihood(**geometry).run(trained))


def test_a_likelihood_that_sees_the_future_says_so():
    """The papers' selection may be trained, to compare with them, but its numbers carry a mark."""
    data = Pieces()
    for selection, marked in (("causal", False), ("paper", True)):
        mixer = Routing(heads=2, local_heads=1, clusters=2, window=4, selection=selection)
        config = Train(data, Transformer(layers=1, model=8, hidden=8, mixer=mixer))
        model = config.model.build(len(data.vocabulary().names), jnp.float32, seed=0)
        trained = Trained(*nnx.split(model), data, window=16, step=0)
        protocol = Likelihood(window=16, stride=16).protocol(trained)
        assert ("NOT CAUSAL" in str(protocol.get("likelihood"))) == marked
