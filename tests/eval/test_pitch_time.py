"""Relative pitch and time from the chorales to the score and back: train, evaluate, compose."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from configs.catalogue import load_config
from eval.likelihood import Likelihood
from eval.samples import ChoraleSamples, sample_chorales
from kernels.attention import Places
from longctx.attention.positions import RelativePitchTime
from longctx.data.batch import Batch
from longctx.evaluator import Trained
from longctx.generate import generate
from longctx.sampling import Sampler
from longctx.train.config import Train
from longctx.train.load import load_trained
from longctx.train.loop import train
from longctx.train.step import summed_loss
from music.chorales import Chorales
from music.tokenizers.chorale_grid import ChoraleGrid
from scripts.generate import compose

TINY = load_config(str(Path(__file__).parents[1] / "configs" / "tiny.py"))
GREEDY, NEVER = Sampler(temperature=0.0), -1


@dataclass(frozen=True)
class Few(Chorales):
    """The first three chorales of each split, cut to 60 tokens."""

    def sequences(self, split):
        return tuple(sequence[:60] for sequence in super().sequences(split)[:3])


def experiment() -> Train:
    mixer = replace(TINY.model.mixer, position=RelativePitchTime(max_time=8, max_pitch=24))
    likelihood = Likelihood(every=2, window=16, stride=6, batch=8)
    return replace(
        TINY,
        data=Few(),
        model=replace(TINY.model, mixer=mixer, remat=True),
        evaluators=(likelihood, ChoraleSamples(every=2, count=1, length=8)),
        steps=2,
    )


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "pitch_time"
    train(experiment(), folder)
    return folder


@pytest.fixture(scope="module")
def trained(run_dir) -> Trained:
    """Return the trained model, with parameters so sharp that coordinates matter."""
    loaded = load_trained(run_dir, "last")
    sharp = jax.tree.map(lambda leaf: 3 * leaf if leaf.ndim > 1 else leaf, loaded.params)
    return replace(loaded, params=sharp)


@partial(jax.jit, static_argnums=0)
def _logits(graphdef, params, tokens, coordinates):
    return nnx.merge(graphdef, params)(tokens, Places(coordinates=coordinates))[0]


def logits(trained: Trained, tokens: np.ndarray, start: int = 0) -> np.ndarray:
    """Return the logits of one full pass; `start` is the first token's place in its piece."""
    tokens = np.asarray(tokens)
    padded = np.pad(tokens, (0, 64 - len(tokens)))
    coordinates = ChoraleGrid().coordinates(padded, start + np.arange(64))
    whole = _logits(trained.graphdef, trained.params, padded[None], coordinates[None])
    return np.asarray(whole)[0, : len(tokens)]


def test_the_likelihood_is_that_of_the_full_passes(trained):
    """In windows that begin within steps."""
    losses = []
    for piece in Few().sequences("valid"):
        bounded = np.concatenate([[0], piece])
        for target in range(len(piece)):
            end = 16 if target < 16 else 16 + 6 * (1 + (target - 16) // 6)
            scores = logits(trained, bounded[end - 16 : target + 1], end - 16)[-1]
            losses.append(np.log(np.exp(scores).sum()) - scores[piece[target]])
    ((_, nll),) = Likelihood(window=16, stride=6).run(trained)
    assert nll == pytest.approx(np.mean(losses), rel=1e-5)


def test_greedy_generation_is_the_argmax_of_the_full_pass(trained):
    """With a cache, over prompts of different lengths, the first and the last within a step."""
    grid = Few().vocabulary()
    piece = np.concatenate([[0], Few().sequences("test")[0]])
    prompts = [piece[:1], piece[:17], piece[:7]]
    rows = generate(
        trained.graphdef, trained.params, prompts,
        length=40, boundary=NEVER, sampler=GREEDY, rule=trained.rule(),
    )  # fmt: skip
    assert trained.rule() == grid
    assert len({tuple(row) for row in rows}) == 3
    for prompt, row in zip(prompts, rows, strict=True):
        chosen = logits(trained, np.concatenate([prompt, row]))[len(prompt) - 1 : -1]
        np.testing.assert_array_equal(chosen.argmax(axis=1), row)


def test_the_coordinates_of_a_batch_reach_the_loss(trained):
    tokens = np.random.default_rng(0).integers(2, 48, (2, 17)).astype(np.int32)
    batch = Batch(tokens[:, :-1], tokens[:, 1:], np.ones((2, 16), np.float32))
    losses, loss = [], jax.jit(summed_loss, static_argnums=(0, 3))
    for start in (0, 2):
        positions = np.tile(start + np.arange(16), (2, 1))
        coordinates = ChoraleGrid().coordinates(batch.tokens, positions)
        placed = batch._replace(coordinates=coordinates)
        losses.append(float(loss(trained.graphdef, trained.params, placed, None)))
    assert abs(losses[0] - losses[1]) > 1e-2
    with pytest.raises(ValueError, match=r"reads 2 coordinates .* 0 came"):
        loss(trained.graphdef, trained.params, batch, None)


def test_a_vocabulary_that_supplies_none_is_refused_before_a_step(trained, tmp_path):
    @dataclass(frozen=True)
    class Unplaced(ChoraleGrid):
        coordinates = None

    class Silent(Few):
        def vocabulary(self):
            return Unplaced()

    with pytest.raises(ValueError, match=r"reads 2 coordinates .* Unplaced supplies none"):
        train(replace(experiment(), data=Silent()), tmp_path / "run")
    with pytest.raises(ValueError, match=r"reads 2 coordinates .* Unplaced supplies none"):
        sample_chorales(replace(trained, data=Silent()), 1, length=4, sampler=GREEDY, seed=0)


def test_it_composes(run_dir, tmp_path, capsys):
    compose(run_dir, tmp_path, num=1, length=8, checkpoint="last", sampler=Sampler())
    assert "step 2" in capsys.readouterr().out


def test_generation_without_a_rule_is_refused(trained):
    with pytest.raises(ValueError, match=r"reads 2 coordinates .* 0 came"):
        generate(
            trained.graphdef, trained.params, [np.array([0])],
            length=4, boundary=NEVER, sampler=GREEDY,
        )  # fmt: skip
