"""Recall data: what a sequence promises, and the refusals."""

from dataclasses import replace

import numpy as np
import pytest

from longctx.data.recall import HELD_OUT, Recall

DATA = Recall(pairs=4, gap=10, keys=9, values=5)


def test_a_sequence_asks_once_for_every_pair_and_scores_only_values():
    batch = next(DATA.training_batches(DATA.length, 8, seed=3))
    assert batch.tokens.shape == (8, DATA.length)
    np.testing.assert_array_equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert (batch.tokens[:, 0] == 0).all()
    for targets, weights in zip(batch.targets, batch.weights, strict=True):
        told, asked = targets[:8].reshape(4, 2), targets[18:].reshape(4, 2)
        assert len(set(told[:, 0])) == 4
        assert sorted(map(tuple, told)) == sorted(map(tuple, asked))
        np.testing.assert_array_equal(np.flatnonzero(weights), 18 + np.array([1, 3, 5, 7]))
        assert ((targets[8:18] > 14) & (targets[8:18] < 24)).all()


def test_sequences_are_new_each_time_and_those_of_evaluation_are_not():
    stream = DATA.training_batches(DATA.length, 4, seed=3)
    first, second = next(stream), next(stream)
    assert not np.array_equal(first.tokens, second.tokens)
    again = DATA.training_batches(DATA.length, 4, seed=3)
    np.testing.assert_array_equal(next(again).tokens, first.tokens)
    state, third = again.get_state(), next(again)
    again.set_state(state)
    np.testing.assert_array_equal(next(again).tokens, third.tokens)
    valid = list(DATA.evaluation_batches("valid", DATA.length, 1, 64))
    assert sum(len(batch.tokens) for batch in valid) == HELD_OUT
    test = next(DATA.evaluation_batches("test", DATA.length, 1, 64))
    assert not np.array_equal(valid[0].tokens, test.tokens)


def test_refusals_say_what_fits():
    with pytest.raises(ValueError, match="set window=26"):
        DATA.training_batches(20, 4, seed=0)
    with pytest.raises(ValueError, match="leaves a rest of 256"):
        next(DATA.evaluation_batches("valid", DATA.length, 1, 60))
    with pytest.raises(ValueError, match="10 pairs need as many keys"):
        Recall(pairs=10, keys=9)
    with pytest.raises(ValueError, match="must not be so small"):
        Recall(gap=-1)
    with pytest.raises(ValueError, match="near is a share from 0 to 1, not 2"):
        Recall(near=2)


def test_the_pairs_of_near_sequences_stand_before_the_questions_in_training_alone():
    data = replace(DATA, near=1.0)
    targets = next(data.training_batches(DATA.length, 8, seed=3)).targets
    assert ((targets[:, :10] > 14) & (targets[:, :10] < 24)).all()
    for row in targets:
        assert sorted(map(tuple, row[10:18].reshape(4, 2))) == sorted(
            map(tuple, row[18:].reshape(4, 2))
        )
    np.testing.assert_array_equal(data.sequences("test"), DATA.sequences("test"))
