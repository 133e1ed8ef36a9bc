"""What training carries is in the checkpoint: a run that stops goes on bit for bit."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from longctx.attention.patterns import Recurrent
from longctx.attention.positions import RelativeEmbedding
from longctx.data.streaming import Streamed
from longctx.mixers import TransformerXL
from longctx.train import loop
from longctx.train.checkpoint import CheckpointError, Checkpoints
from longctx.train.config import Train
from longctx.train.load import load_trained
from longctx.train.loop import initialise, train
from longctx.transformer import Transformer
from tests.longctx.documents import Documents

XL = TransformerXL(heads=2, position=RelativeEmbedding(max_distance=9), pattern=Recurrent(8, 8))
CONFIG = Train(
    data=Streamed(Documents()),
    model=Transformer(layers=1, model=8, hidden=8, mixer=XL, dropout=0.0),
    steps=6, batch=2, window=8, save_every=3, log_every=3,
)  # fmt: skip


def restored(config: Train, folder):
    checkpoints = Checkpoints(folder / "checkpoints", config)
    return checkpoints.restore(config.steps, initialise(config)[2]).state


class Stop(Exception):
    pass


def test_a_run_that_stops_goes_on_with_what_it_carried(tmp_path, monkeypatch):
    train(CONFIG, tmp_path / "whole")
    whole = restored(CONFIG, tmp_path / "whole")
    assert whole.carry is not None
    assert np.any(whole.carry.layers[0].k)

    written = loop.Log.write

    def stop(log, step, values):
        written(log, step, values)
        if step == 6:
            raise Stop

    monkeypatch.setattr(loop.Log, "write", stop)
    with pytest.raises(Stop):
        train(CONFIG, tmp_path / "stopped")
    monkeypatch.setattr(loop.Log, "write", written)
    train(CONFIG, tmp_path / "stopped")
    jax.tree.map(np.testing.assert_array_equal, restored(CONFIG, tmp_path / "stopped"), whole)


def test_data_whose_rows_do_not_go_on_carry_nothing(tmp_path):
    config = replace(CONFIG, data=Documents(), steps=2)
    train(config, tmp_path / "run")
    assert restored(config, tmp_path / "run").carry is None
    assert load_trained(tmp_path / "run").step == 2


def test_a_checkpoint_with_another_memory_is_refused_by_name(tmp_path):
    train(replace(CONFIG, steps=3), tmp_path / "run")
    longer = replace(XL, pattern=Recurrent(8, 16))
    other = replace(CONFIG, steps=3, model=replace(CONFIG.model, mixer=longer))
    with pytest.raises(CheckpointError, match="memory"):
        restored(other, tmp_path / "run")
