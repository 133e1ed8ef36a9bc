"""Several documents in a row: nothing lost, nothing leaks, little padding, and an exact place."""

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from restored import check_restored

from longctx.data import packing
from longctx.data.packing import ROWS_AT_ONCE, Packed, cut, packed_batches
from longctx.data.python_source import PythonSource
from longctx.data.windows import bounded, bounded_part


class Numbers:
    """A vocabulary of many tokens, with steps of `stride`."""

    boundary = 0
    names = tuple(map(str, range(100_000)))

    def __init__(self, stride: int = 1):
        self.stride = stride

    def encode(self, piece):
        return piece

    def decode(self, tokens):
        return tokens


def documents(lengths) -> list[np.ndarray]:
    """Return documents of distinct tokens: 1000 i + 1, 1000 i + 2, ..."""
    return [1000 * i + np.arange(1, n + 1, dtype=np.int32) for i, n in enumerate(lengths)]


def rows(iterator, batches: int):
    for _ in range(batches):
        batch = next(iterator)
        yield from zip(batch.tokens, batch.targets, batch.weights, batch.segments, strict=True)


FEW_ROWS = 16


def packed(*arguments) -> grain.DatasetIterator:
    """Return packed batches with only a few rows open, which is quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "ROWS_AT_ONCE", FEW_ROWS)
        return packed_batches(*arguments)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    window=st.integers(1, 24),
    data=st.data(),
)
@settings(max_examples=12, deadline=None)
def test_an_epoch_asks_for_every_token_of_every_document_once(lengths, window, data):
    stride = data.draw(st.integers(1, min(window, 4)))
    docs = documents(lengths)
    iterator = packed(docs, Numbers(stride), window, 8, data.draw(st.integers(0, 9)))
    asked, ends = np.zeros(1000 * len(docs), int), 0
    for _, targets, weights, _ in rows(iterator, 4 * FEW_ROWS // 8):
        real = targets[weights > 0]
        ends += int((real == 0).sum())
        np.add.at(asked, real[real > 0], 1)
    counts = asked[np.concatenate(docs)]
    assert asked.sum() == counts.sum()
    epochs = counts.min()
    assert epochs >= 1 or sum(lengths) > window * FEW_ROWS
    assert counts.max() <= epochs + 1
    assert epochs * len(docs) <= ends <= (epochs + 1) * len(docs)


@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    window=st.integers(4, 24),
    stride=st.integers(1, 4),
)
@settings(max_examples=12, deadline=None)
def test_no_prediction_crosses_into_another_document(lengths, window, stride):
    iterator = packed(documents(lengths), Numbers(stride), window, 8, 0)
    for tokens, targets, weights, segments in rows(iterator, 4):
        assert (np.diff(segments[weights > 0], prepend=-1) <= 1).all()
        assert (np.diff(segments[weights > 0]) >= 0).all()
        assert (weights == (segments >= 0)).all()
        assert (np.diff(weights) <= 0).all()
        for segment in range(segments.max() + 1):
            own = segments == segment
            seen, asked = tokens[own], targets[own]
            owners = {t // 1000 for t in (*seen, *asked) if t}
            assert len(owners) == 1
            np.testing.assert_array_equal(seen[1:], asked[:-1])
            assert (asked[:-1] != 0).all()
            assert (seen[1:] != 0).all()
            whole = bounded(documents(lengths)[owners.pop()], 0)
            places = np.flatnonzero(whole == seen[0]) if seen[0] else [0]
            np.testing.assert_array_equal(whole[places[0] + 1 :][: own.sum()], asked)
            assert seen[0] == 0 or seen[0] % 1000 % stride == 0


@given(st.integers(0, 12), st.data())
def test_a_part_of_a_document_is_a_slice_of_it(length, data):
    document = np.arange(1, length + 1, dtype=np.int32)
    start = data.draw(st.integers(0, length + 1))
    stop = data.draw(st.integers(start + 1, length + 2))
    part = bounded_part(document, 0, start, stop)
    np.testing.assert_array_equal(part, bounded(document, 0)[start:stop])


def padding(iterator, batches: int) -> float:
    return float(np.mean([row[2] == 0 for row in rows(iterator, batches)]))


@pytest.mark.parametrize("window", [256, 1024])
def test_little_of_realistic_text_is_padding(window):
    lengths = np.random.default_rng(0).lognormal(6, 1.2, 600).astype(int) + 1
    docs = [np.ones(n, np.int32) for n in lengths]
    assert padding(packed_batches(docs, Numbers(), window, 8, 0), 80) < 0.04


def test_little_of_the_embedded_text_is_padding():
    assert padding(Packed(PythonSource()).training_batches(512, 8, 0), 64) < 0.02


def batches(seed: int, batch: int = 6):
    lengths = np.random.default_rng(1).integers(1, 90, 120)
    return packed_batches(documents(lengths), Numbers(), 32, batch, seed)


@pytest.mark.parametrize("taken", [0, 1, 20, 21, 22, 43])
def test_a_restored_iterator_goes_on_exactly(taken):
    check_restored(lambda: batches(5), taken, more=30)


def test_seeds_decide_the_order():
    first, second, other = (next(batches(seed)).tokens for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_epochs_differ():
    docs = documents([15] * 4 * ROWS_AT_ONCE)
    iterator = packed_batches(docs, Numbers(), 32, ROWS_AT_ONCE, 0)
    first, second = ([next(iterator).tokens for _ in range(2)] for _ in range(2))
    assert not np.array_equal(first, second)


def test_batches_have_the_types_that_training_wants():
    batch = next(batches(0))
    assert {a.dtype for a in (batch.tokens, batch.targets, batch.segments)} == {np.dtype(np.int32)}
    assert batch.weights.dtype == np.float32
    assert batch.tokens.shape == (6, 32)


def test_a_window_shorter_than_a_step_is_refused():
    with pytest.raises(ValueError, match="window of 3 tokens is shorter than a step of 4"):
        cut(documents([5]), Numbers(4), 3)


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="no document"):
        packed_batches([], Numbers(), 4, 1, 0)
