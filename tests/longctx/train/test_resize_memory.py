"""A run goes on with a memory of another size, as if it had always had it."""

import signal
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from longctx.attention.layer import Attention
from longctx.attention.positions import RelativeEmbedding
from longctx.data.streaming import Streamed
from longctx.mixers import Memorizing
from longctx.train.checkpoint import Checkpoints
from longctx.train.config import Train
from longctx.train.log import Log
from longctx.train.loop import Interrupted, initialise, train
from longctx.train.resize_memory import resize_memory
from longctx.train.run_folder import RunFolder
from longctx.transformer import Transformer
from scripts import resize_memory as program
from tests.longctx.documents import Documents

SMALL = Memorizing(heads=2, position=RelativeEmbedding(9), window=4, memory=12, top_k=3)
CONFIG = Train(
    data=Streamed(Documents()),
    model=Transformer(layers=1, model=8, hidden=8, mixer=SMALL, dropout=0.0),
    steps=2, batch=2, window=8, save_every=1, log_every=1,
)  # fmt: skip


def sized(memory: int, steps: int) -> Train:
    mixer = replace(SMALL, memory=memory)
    return replace(CONFIG, steps=steps, model=replace(CONFIG.model, mixer=mixer))


def last_state(config: Train, folder):
    checkpoints = Checkpoints(folder / "checkpoints", config)
    return checkpoints.restore(config.steps, initialise(config)[2]).state


def train_until(step: int, config: Train, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until a signal asks for a stop in this step."""
    written = Log.write

    def write(log, now, values):
        written(log, now, values)
        if now == step:
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Log, "write", write)
        with pytest.raises(Interrupted, match=f"after step {step}"):
            train(config, folder)


@pytest.mark.parametrize(
    ("before", "after", "cut"),
    [(12, 40, 2), pytest.param(40, 12, 1, marks=pytest.mark.slow)],
    ids=["more", "less"],
)
def test_training_goes_on_as_if_it_had_always_had_that_memory(
    before, after, cut, tmp_path, monkeypatch, capsys
):
    """What was seen at the cut, 8 tokens a step, fits in both; what comes later not in 12."""
    train_until(cut, sized(before, 5), tmp_path / "old", monkeypatch)
    program.main([str(tmp_path / "old"), "--memory", str(after), "--out", str(tmp_path / "new")])
    told = f"after step {cut} with a memory of {after} keys"
    assert told in capsys.readouterr().out
    config = sized(after, 5)
    train(config, tmp_path / "new")
    train(config, tmp_path / "whole")
    ours, theirs = (last_state(config, tmp_path / name) for name in ("new", "whole"))
    assert ours.step == theirs.step == 5
    for of_ours, of_theirs in ((ours.params, theirs.params), (ours.carry, theirs.carry)):
        jax.tree.map(np.testing.assert_array_equal, of_ours, of_theirs)


def test_less_memory_keeps_the_newest(tmp_path):
    train(sized(12, 2), tmp_path / "large")
    assert resize_memory(tmp_path / "large", 3, tmp_path / "small") == 2
    large, small = (
        last_state(sized(memory, 2), tmp_path / name).carry.layers[0].store.entries
        for memory, name in ((12, "large"), (3, "small"))
    )
    assert small.k.shape[2] == 7
    for ours, theirs in ((small.k, large.k), (small.v, large.v)):
        # All 16 slots were full, the first the oldest; 9 of them went before, and 9 % 7 is 2.
        np.testing.assert_array_equal(ours, np.roll(theirs[:, :, 9:], 2, axis=2))
    np.testing.assert_array_equal(small.at.positions, np.roll(large.at.positions[:, 9:], 2, axis=1))


def test_what_cannot_be_converted_is_refused(tmp_path):
    train(sized(12, 1), tmp_path / "run")
    with pytest.raises(ValueError, match=r"resize_memory .*run --memory N --out NEW_RUN"):
        train(sized(13, 1), tmp_path / "run")
    with pytest.raises(ValueError, match="a memory of 2 can't give top_k 3"):
        resize_memory(tmp_path / "run", 2, tmp_path / "new")
    with pytest.raises(ValueError, match="holds a run already"):
        resize_memory(tmp_path / "run", 20, tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no run folder"):
        resize_memory(tmp_path / "nothing", 20, tmp_path / "new")
    RunFolder(tmp_path / "begun").create(CONFIG)
    with pytest.raises(FileNotFoundError, match="begun holds no checkpoint yet"):
        resize_memory(tmp_path / "begun", 20, tmp_path / "new")
    plain = replace(CONFIG, steps=1, model=replace(CONFIG.model, mixer=Attention(heads=2)))
    train(plain, tmp_path / "plain")
    with pytest.raises(ValueError, match=r"no mixer .* is Memorizing"):
        resize_memory(tmp_path / "plain", 20, tmp_path / "new")
