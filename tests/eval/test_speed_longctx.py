"""Our cases measure what they say, at sizes that take seconds."""

import numpy as np
import pytest

from eval import speed_longctx
from eval.speed_cases import GENERATION, TRAINING
from longctx.data.vocabulary import Vocabulary

SMALL: dict[str, int] = {"layers": 1, "model": 16, "hidden": 32, "heads": 2, "vocab": 11}


def test_training_is_measured():
    result = speed_longctx.training(24, 2, steps=2, dtype="bfloat16", **SMALL)
    assert result["tokens"] == 48
    assert len(result["all_cpu_seconds"]) == 2
    assert min(result[key] for key in ("compile_seconds", "temp_bytes", "peak_bytes")) > 0


def test_generation_is_measured_after_one_that_compiles():
    result = speed_longctx.generation(12, 3, steps=1, position="none", **SMALL)
    assert result["tokens"] == 36
    assert result["first_wall_seconds"] > result["wall_seconds"] > 0
    assert result["compile_seconds"] > 0


def test_the_cases_have_the_size_of_the_peers():
    config = speed_longctx.experiment(1024, 4)
    peer = {"layers": 5, "model": 256, "hidden": 1024, "dropout": 0.0, "tied": True}
    assert {name: getattr(config.model, name) for name in peer} == peer
    assert config.model.mixer.heads == 8
    assert config.model.mixer.position.max_distance == config.window == 1024
    assert len(config.data.vocabulary().names) == 388


@pytest.mark.parametrize("choice", [*TRAINING.values(), *GENERATION.values()])
def test_the_choices_of_the_cases_exist(choice):
    speed_longctx.experiment(24, 2, **choice, **SMALL)


def test_random_batches_predict_the_next_token():
    data = speed_longctx.RandomTokens(11)
    assert isinstance(data.vocabulary(), Vocabulary)
    batch = data.batch(np.random.default_rng(0), 2, 24)
    np.testing.assert_array_equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert batch.tokens.max() < 11
