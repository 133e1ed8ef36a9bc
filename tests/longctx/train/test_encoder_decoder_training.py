"""An encoder-decoder in a training run: the same loop, batches whose source has no weight."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.catalogue import load_config
from longctx.data.source_target import SourceTarget
from longctx.encoder_decoder import EncoderDecoder
from longctx.flags import training_flags
from longctx.serialise import from_json, to_json
from longctx.train.load import load_trained
from longctx.train.loop import train

TINY = load_config(str(Path(__file__).parents[2] / "configs" / "tiny.py"))
SOURCE = 6
CONFIG = replace(
    TINY,
    data=SourceTarget(TINY.data, SOURCE),
    model=EncoderDecoder(
        encoder_layers=1, decoder_layers=1, model=16, hidden=16, mixer=TINY.model.mixer,
        source=SOURCE,
    ),
    evaluators=(),
    steps=6,
    log_every=3,
)  # fmt: skip


def test_a_run_trains_and_comes_back(tmp_path):
    trained = train(CONFIG, tmp_path / "run")
    again = load_trained(tmp_path / "run", "last")
    for a, b in zip(jax.tree.leaves(trained.params), jax.tree.leaves(again.params), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()


def test_flags_and_files_spell_each_switch():
    flags = ["--run-dir", "x", "--model.align-layers", "True"]
    model = training_flags(CONFIG, flags, prog="train").config.model
    assert model == replace(CONFIG.model, align_layers=True)
    assert from_json(to_json(CONFIG)) == CONFIG


def test_the_source_has_no_weight_and_all_else_is_as_it_was():
    got = next(CONFIG.data.training_batches(16, 2, seed=0))
    want = next(TINY.data.training_batches(16, 2, seed=0))
    assert not got.weights[:, :SOURCE].any()
    np.testing.assert_array_equal(got.weights[:, SOURCE:], want.weights[:, SOURCE:])
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_array_equal(got.targets, want.targets)


def test_batches_continue_from_their_state():
    batches = CONFIG.data.training_batches(16, 2, seed=0)
    next(batches)
    state, want = batches.get_state(), next(batches)
    again = CONFIG.data.training_batches(16, 2, seed=0)
    again.set_state(state)
    np.testing.assert_array_equal(next(again).tokens, want.tokens)


def test_evaluation_scores_all_but_the_source_of_each_piece():
    pieces = TINY.data.sequences("valid")
    batches = CONFIG.data.evaluation_batches("valid", 16, 10, 8)
    scored = sum(batch.weights.sum() for batch in batches)
    assert scored == sum(len(piece) - SOURCE for piece in pieces)


def test_windows_without_room_are_refused():
    with pytest.raises(ValueError, match="a window of 6 tokens holds no target after 6"):
        CONFIG.data.training_batches(6, 2, seed=0)
    with pytest.raises(ValueError, match="stride 11 skips tokens: a window of 16 predicts 10"):
        next(CONFIG.data.evaluation_batches("valid", 16, 11, 8))
    with pytest.raises(ValueError, match="source must be at least 1"):
        SourceTarget(TINY.data, 0)
