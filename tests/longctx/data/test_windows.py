"""Windows to train and to evaluate on: nothing lost, nothing twice, and a place to resume from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from restored import check_restored

from longctx.data.base import DataConfig
from longctx.data.windows import evaluation_batches, training_batches


class Letters:
    """A vocabulary of 1000 tokens in steps of 4."""

    boundary = 0
    stride = 4
    names = tuple(map(str, range(1000)))

    def encode(self, piece):
        return piece

    def decode(self, tokens):
        return tokens


@given(
    lengths=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    window=st.integers(1, 24),
    data=st.data(),
)
def test_evaluation_scores_every_token_exactly_once(lengths, window, data):
    stride = data.draw(st.integers(1, window))
    pieces = [100 * i + np.arange(1, n + 1) for i, n in enumerate(lengths)]
    scored = []
    for batch in evaluation_batches(pieces, Letters(), window, stride, batch=3):
        assert batch.tokens.shape == (3, window)
        assert batch.segments is batch.coordinates is None
        for tokens, targets, weights in zip(*batch[:3], strict=True):
            for place in np.flatnonzero(weights):
                target = targets[place]
                scored.append(target)
                context = place + 1
                assert context >= min(target % 100, window - stride + 1)
                before = target - np.arange(1, context + 1)
                before[before % 100 == 0] = 0
                np.testing.assert_array_equal(tokens[: place + 1][::-1], before)
    assert sorted(scored) == sorted(np.concatenate(pieces))


def test_evaluation_refuses_a_stride_that_leaves_gaps():
    with pytest.raises(ValueError, match="between 1 and the window 8, not 9"):
        list(evaluation_batches([np.arange(1, 5)], Letters(), 8, 9, 1))


def batches(seed: int):
    pieces = [100 * i + np.arange(1, n + 1) for i, n in enumerate((12, 40, 41, 90))]
    return training_batches(pieces, Letters(), window=16, batch=2, seed=seed)


def test_crops_are_true_to_their_piece_and_begin_with_a_step():
    ends = 0
    iterator = batches(0)
    for _ in range(60):
        for tokens, targets, weights in zip(*next(iterator)[:3], strict=True):
            count = int(weights.sum())
            assert weights[:count].all()
            np.testing.assert_array_equal(tokens[1:count], targets[: count - 1])
            assert tokens[0] == 0 or (targets[0] % 100) % 4 == 1
            inner = targets[: count - 1]
            assert (inner != 0).all()
            ends += targets[count - 1] == 0
    assert ends > 20


def test_the_end_of_a_piece_is_seen_as_often_as_its_middle():
    """A piece of 400 tokens in windows of 16: each target is in about 16 / 416 of them.

    With places drawn inside the piece only, its end would be in one of a hundred.
    """
    iterator = training_batches([np.arange(1, 401)], Letters(), window=16, batch=50, seed=0)
    seen = [next(iterator) for _ in range(100)]
    targets = np.concatenate([batch.targets[batch.weights > 0] for batch in seen])
    expected = 5000 * 16 / 416
    for token in (0, 1, 200, 399, 400):
        assert 0.6 < (targets == token).sum() / expected < 1.7, token


def test_an_epoch_visits_every_piece_in_an_order_of_its_own():
    iterator = batches(0)
    epochs = []
    for _ in range(8):
        both = [next(iterator), next(iterator)]
        epochs.append([int(row[1]) // 100 for batch in both for row in batch.targets])
    assert all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_restored_iterator_goes_on_exactly(batch):
    pieces = [np.arange(1, length) for length in (30, 60, 90)]
    check_restored(lambda: training_batches(pieces, Letters(), 16, batch, 5), taken=7, more=5)


def test_seeds_decide_the_order():
    first, second, other = (next(batches(seed)).tokens for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="no piece"):
        training_batches([], Letters(), 4, 1, 0)


class Pieces(DataConfig):
    """Four pieces to train on, two to validate on."""

    def vocabulary(self):
        return Letters()

    def sequences(self, split):
        lengths = {"train": (12, 40, 41, 90), "valid": (30, 50), "test": ()}[split]
        return tuple(100 * i + np.arange(1, n + 1) for i, n in enumerate(lengths))


def test_a_data_set_trains_on_crops_and_evaluates_on_windows():
    ours, theirs = Pieces().training_batches(16, 2, 5), batches(5)
    for _ in range(5):
        for one, other in zip(next(ours)[:3], next(theirs)[:3], strict=True):
            np.testing.assert_array_equal(one, other)
    scored = [
        batch.targets[batch.weights > 0]
        for batch in Pieces().evaluation_batches("valid", window=16, stride=4, batch=3)
    ]
    np.testing.assert_array_equal(
        sorted(np.concatenate(scored)), np.concatenate(Pieces().sequences("valid"))
    )
