"""Streams of documents: every row goes on where it ended, and so does a restored run."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from restored import check_restored

from longctx.data.streaming import streamed_batches
from tests.longctx.data.test_packing import Numbers, documents


def streams(lengths, window: int, batch: int, seed: int = 0):
    return streamed_batches(documents(lengths), Numbers(), window, batch, seed)


def read_rows(iterator, batches: int) -> list[tuple[np.ndarray, ...]]:
    """Return tokens, targets, segments of each row, all batches end to end."""
    seen = [next(iterator) for _ in range(batches)]
    assert all((batch.weights == 1).all() for batch in seen)
    parts = [[batch[i] for batch in seen] for i in (0, 1, 3)]
    tokens, targets, segments = (np.concatenate(part, axis=1) for part in parts)
    return list(zip(tokens, targets, segments, strict=True))


lists = st.lists(st.integers(1, 50), min_size=1, max_size=8)


@settings(max_examples=20, deadline=None)
@given(lengths=lists, window=st.integers(1, 20), batch=st.integers(1, 4))
def test_rows_continue_from_batch_to_batch(lengths, window, batch):
    for tokens, targets, segments in read_rows(streams(lengths, window, batch), 8):
        np.testing.assert_array_equal(tokens[1:], targets[:-1])
        starts = np.diff(segments, prepend=-1) != 0
        np.testing.assert_array_equal(starts, tokens == 0)
        docs = documents(lengths)
        for segment in np.unique(segments):
            own = segments == segment
            first = targets[own][0]
            whole = np.concatenate([docs[first // 1000], [0]])
            np.testing.assert_array_equal(targets[own], whole[: own.sum()])


@settings(max_examples=20, deadline=None)
@given(lengths=lists, window=st.integers(1, 20), batch=st.integers(1, 4))
def test_each_epoch_begins_every_document_once(lengths, window, batch):
    begun: dict[int, int] = {}
    for _, targets, segments in read_rows(streams(lengths, window, batch), 8):
        for segment in np.unique(segments):
            assert segment not in begun
            begun[segment] = int(targets[segments == segment][0]) // 1000
    waiting = set(range(max(begun) + 1)) - set(begun)
    assert len(waiting) < batch, "a row takes its next document when it has ended one"
    order = [begun[number] for number in range(min(waiting, default=max(begun) + 1))]
    count = len(lengths)
    for epoch in range(len(order) // count):
        assert sorted(order[epoch * count : (epoch + 1) * count]) == list(range(count))


@pytest.mark.parametrize("taken", [0, 1, 7, 30])
def test_a_restored_stream_goes_on_exactly(taken):
    lengths = np.random.default_rng(0).integers(1, 90, 20)
    check_restored(lambda: streams(lengths, 16, 3), taken, more=40)


def test_a_state_is_a_copy():
    iterator = streams([40, 50], 16, 2)
    place = iterator.get_state()
    before = json.dumps(place)
    next(iterator)
    assert json.dumps(place) == before


def test_seeds_decide_the_order():
    first, second, other = (next(streams(range(1, 30), 16, 3, s)).tokens for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="no document"):
        streamed_batches([], Numbers(), 4, 1, 0)
