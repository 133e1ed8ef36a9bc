"""The loop: what it logs, what its folder holds, and what it refuses."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from configs.catalogue import load_config
from longctx.data.vocabulary import vocabulary_hash
from longctx.evaluator import Evaluator
from longctx.serialise import from_json
from longctx.train.config import Train
from longctx.train.load import load_trained
from longctx.train.loop import Interrupted, NonFiniteLoss, initialise, train
from longctx.train.optimizer import AdamW
from longctx.train.run_folder import RunFolder
from music.chorales import Chorales

TINY = load_config(str(Path(__file__).parents[2] / "configs" / "tiny.py"))
BARE = replace(TINY, evaluators=())


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(TINY, folder)
    return folder


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_shows_what_was_measured_a_sound_and_a_picture(run_dir):
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    for name in (
        "train/loss",
        "train/learning_rate",
        "train/grad_norm",
        "speed/tokens_per_second",
        "speed/model_flop_utilisation",
    ):
        scalars = events.Scalars(name)
        assert [event.step for event in scalars] == [*range(1, TINY.steps + 1)]
        logged = [line[name] for line in lines(run_dir) if name in line]
        assert [event.value for event in scalars] == [float(np.float32(x)) for x in logged]
        assert all(value >= 0 for value in logged)
    assert [event.step for event in events.Scalars("valid/nll")] == [6, 12]
    assert tags["audio"] == ["samples/0/audio"]
    assert tags["images"] == ["samples/0/piano_roll"]
    assert events.Audio("samples/0/audio")[0].encoded_audio_string.startswith(b"RIFF")
    picture = events.Images("samples/0/piano_roll")[0]
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    assert picture.width > picture.height > 100


def test_the_learning_rate_that_is_logged_is_the_one_that_acted(run_dir):
    schedule = TINY.optimizer.schedule(TINY.steps)
    logged = [line["train/learning_rate"] for line in lines(run_dir) if "train/loss" in line]
    assert logged == [float(schedule(step)) for step in range(TINY.steps)]


def test_the_folder_tells_how_the_run_came_about(run_dir):
    assert from_json((run_dir / "config.json").read_text()) == TINY
    assert RunFolder(run_dir).config() == TINY
    tokenizer = json.loads((run_dir / "tokenizer.json").read_text())
    assert tokenizer["hash"] == vocabulary_hash(TINY.data.vocabulary())
    assert tokenizer["names"][:2] == ["boundary", "rest"]
    start = json.loads((run_dir / "provenance.json").read_text().splitlines()[0])
    assert shlex.split(start["command"]) == [sys.executable, *sys.orig_argv[1:]]
    assert start["versions"]["jax"] == jax.__version__
    assert start["versions"].keys() >= {"flax", "optax", "orbax-checkpoint", "grain", "numpy"}
    assert start["commit"] == "unknown" or len(start["commit"].removesuffix("-dirty")) == 40
    assert "cpu" in start["devices"]


def test_the_best_checkpoint_is_the_one_with_the_smallest_logged_likelihood(run_dir):
    scores = {line["step"]: line["valid/nll"] for line in lines(run_dir) if "valid/nll" in line}
    assert load_trained(run_dir).step == min(scores, key=lambda step: scores[step])
    assert load_trained(run_dir, "last").step == TINY.steps


def test_continuing_with_another_flag_is_refused_and_the_difference_is_shown(run_dir):
    other = replace(TINY, window=32, optimizer=replace(TINY.optimizer, learning_rate=0.5))
    before = {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    with pytest.raises(ValueError, match="holds a run of another config") as caught:
        train(other, run_dir)
    assert "window: 32, not 16" in str(caught.value)
    assert "optimizer.learning_rate: 0.5, not 0.01" in str(caught.value)
    assert "steps" not in str(caught.value)
    assert {path: path.read_bytes() for path in run_dir.iterdir() if path.is_file()} == before


def test_a_run_of_another_tokenizer_is_refused_and_both_are_shown(run_dir, tmp_path):
    folder = RunFolder(tmp_path)
    folder.create(TINY)
    held = Chorales(held=True)
    with pytest.raises(ValueError, match="trained with another tokenizer") as caught:
        folder.check_tokenizer(held)
    for data in (TINY.data, held):
        assert vocabulary_hash(data.vocabulary()) in str(caught.value)
    assert "48 tokens" in str(caught.value)
    assert "49 tokens" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"class": "longctx.train.config:Train"'])
def test_a_damaged_config_is_named(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json"):
        load_trained(tmp_path)


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no run folder"):
        load_trained(tmp_path)
    with pytest.raises(FileNotFoundError, match="is no run folder"):
        load_trained(tmp_path / "absent")


@pytest.mark.parametrize("rate", [1e30, 1e38])
def test_a_run_that_diverges_names_the_step_and_keeps_the_last_good_checkpoint(tmp_path, rate):
    """The first update has learning rate 0; the second breaks the parameters."""
    config = replace(BARE, optimizer=AdamW(learning_rate=rate, warmup=1), save_every=1)
    with pytest.raises(NonFiniteLoss, match=r"^step 2: .* is (nan|inf)") as caught:
        train(config, tmp_path)
    assert "The checkpoint of step 1 is kept." in str(caught.value)
    trained = load_trained(tmp_path, "last")
    assert trained.step == 1
    fresh = initialise(config)[2].params
    jax.tree.map(np.testing.assert_array_equal, trained.params, fresh)


def test_a_loss_that_is_no_number_is_found_although_it_is_not_logged(tmp_path):
    """Between two lines of the log; step 3 is the first whose loss sees the broken parameters."""
    config = replace(
        BARE, optimizer=AdamW(learning_rate=1e38, warmup=1), save_every=100, log_every=100
    )
    with pytest.raises(NonFiniteLoss, match=r"^step 3: the loss is nan"):
        train(config, tmp_path)
    assert lines(tmp_path) == []


@dataclass(frozen=True)
class Signal(Evaluator):
    """Sends this process a signal, as often as it is asked to."""

    number: int = signal.SIGTERM
    times: int = 1

    def run(self, trained) -> Iterator:
        for _ in range(self.times):
            os.kill(os.getpid(), self.number)
        return iter(())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_the_step_and_stops(tmp_path, number):
    config = replace(BARE, evaluators=(Signal(every=5, number=number),), save_every=100)
    handlers = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(Interrupted, match=f"stopped by {signal.Signals(number).name} after step 5"):
        train(config, tmp_path)
    assert load_trained(tmp_path, "last").step == 5
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_a_second_signal_stops_at_once(tmp_path):
    config = replace(BARE, evaluators=(Signal(every=5, number=signal.SIGINT, times=2),))
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path)


def test_equal_configs_give_equal_weights_and_another_seed_others(tmp_path):
    config = replace(BARE, steps=3)
    first, again, other = (
        train(c, tmp_path / name).params
        for name, c in (("a", config), ("b", config), ("c", replace(config, seed=1)))
    )
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert any(
        np.any(np.asarray(x) != np.asarray(y))
        for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True)
    )


def test_a_run_in_bfloat16_learns(tmp_path):
    config = replace(BARE, dtype="bfloat16", steps=40, save_every=100)
    trained = train(config, tmp_path)
    losses = [line["train/loss"] for line in lines(tmp_path)]
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.3
    assert {leaf.dtype for leaf in jax.tree.leaves(trained.params)} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"steps": 0}, "steps must be at least 1, not 0"),
        ({"batch": 3, "accumulate": 2}, "batch 3 must be a multiple of accumulate 2"),
        ({"window": -1}, "window must be at least 1"),
    ],
)
def test_impossible_runs_are_refused(changes, text):
    with pytest.raises(ValueError, match=text):
        replace(Train(data=Chorales()), **changes)
