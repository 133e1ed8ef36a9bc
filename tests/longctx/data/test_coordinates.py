"""Every batch says of each token what the vocabulary's rule says at its place in its piece."""

import numpy as np
import pytest

from longctx.data.batch import Batch
from longctx.data.coordinates import rule_for
from longctx.data.masked import WithMask, hide
from longctx.data.packing import packed_batches
from longctx.data.streaming import streamed_batches
from longctx.data.windows import evaluation_batches, training_batches

PIECES = [100 * i + np.arange(1, n + 1) for i, n in enumerate((12, 40, 41, 90))]


class Letters:
    """A vocabulary of 400 tokens in steps of 4; without a rule."""

    boundary = 0
    stride = 4
    names = tuple(map(str, range(400)))

    def encode(self, piece):
        return piece

    def decode(self, tokens):
        return tokens


class PlacedLetters(Letters):
    """The same, with a rule that gives back what it is given."""

    axes = ("position", "token")

    def coordinates(self, tokens, positions):
        return np.stack([positions, tokens], axis=-1)


def windows(vocabulary):
    iterator = training_batches(PIECES, vocabulary, window=16, batch=3, seed=0)
    return [next(iterator) for _ in range(10)]


def evaluation(vocabulary):
    """Windows that begin within steps, and empty ones."""
    return list(evaluation_batches(PIECES, vocabulary, window=16, stride=7, batch=4))


def packed(vocabulary):
    iterator = packed_batches(PIECES, vocabulary, window=46, batch=2, seed=0)
    return [next(iterator) for _ in range(4)]


def streamed(vocabulary):
    """Rows that begin within steps."""
    iterator = streamed_batches(PIECES, vocabulary, window=15, batch=2, seed=0)
    return [next(iterator) for _ in range(10)]


MAKERS = [windows, evaluation, packed, streamed]


def checked(batch: Batch, maker) -> int:
    """Compare what can be compared, and return how many tokens that were."""
    coordinates, tokens = batch.coordinates, batch.tokens
    assert coordinates is not None
    assert coordinates.dtype == np.int32
    np.testing.assert_array_equal(coordinates[..., 1], tokens)
    held = (batch.weights > 0) | (tokens > 0)
    positions = tokens % 100
    if maker is packed:  # which counts from the start of a piece's part, a whole step
        positions = positions % 44
    np.testing.assert_array_equal(coordinates[..., 0][held], positions[held])
    return int(held.sum())


@pytest.mark.parametrize("maker", MAKERS)
def test_coordinates_are_those_of_the_place_in_the_piece(maker):
    assert sum(checked(batch, maker) for batch in maker(PlacedLetters())) > 150


@pytest.mark.parametrize("maker", MAKERS)
def test_a_vocabulary_without_a_rule_adds_nothing(maker):
    for plain, placed in zip(maker(Letters()), maker(PlacedLetters()), strict=True):
        assert plain.coordinates is None
        for ours, theirs in zip(plain[:4], placed[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_hidden_token_is_not_told_by_its_coordinates():
    shown = hide(windows(PlacedLetters())[0], WithMask(Letters()), 0.5, np.random.default_rng(0))
    assert shown.coordinates is None


def test_a_rule_is_asked_for_only_if_the_network_reads_it():
    vocabulary = PlacedLetters()
    assert rule_for(2, vocabulary) is vocabulary
    assert rule_for(0, vocabulary) is None
    assert rule_for(0, Letters()) is None


def test_a_missing_or_other_rule_is_refused():
    with pytest.raises(
        ValueError, match=r"reads 2 coordinates .* Letters supplies none: take anot"
    ):
        rule_for(2, Letters())
    with pytest.raises(ValueError, match=r"reads 3 .* PlacedLetters supplies position, token:"):
        rule_for(3, PlacedLetters())
