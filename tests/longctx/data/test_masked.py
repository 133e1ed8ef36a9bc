"""Masked tokens: the right share, the right targets, no future, no padding, the same every time."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from longctx.data.base import DataConfig
from longctx.data.batch import Batch
from longctx.data.masked import Masked, WithMask, hide
from longctx.data.packing import Packed
from longctx.data.streaming import Streamed
from longctx.data.tokenizers import Bytes
from longctx.data.vocabulary import vocabulary_hash
from longctx.serialise import from_json, to_json


@dataclass(frozen=True)
class Sentences(DataConfig):
    """Forty texts of random letters, of 5 to 200 bytes."""

    def vocabulary(self) -> Bytes:
        return Bytes()

    def sequences(self, split):
        rng = np.random.default_rng(["train", "valid", "test"].index(split))
        return tuple(rng.integers(66, 92, rng.integers(5, 200)) for _ in range(40))


MASK = 257


def test_the_mask_is_one_more_token_at_the_end():
    vocabulary = Masked(Sentences()).vocabulary()
    assert vocabulary.names == (*Bytes().names, "<mask>")
    assert vocabulary.mask == MASK
    assert vocabulary.decode(vocabulary.encode("Tag")) == "Tag"
    assert vocabulary_hash(vocabulary) != vocabulary_hash(Bytes())
    with pytest.raises(ValueError, match="token at place 1 is <mask>, which spells nothing"):
        vocabulary.decode(np.array([66, MASK]))


def test_chosen_tokens_are_hidden_in_the_published_shares():
    targets = np.full((200, 500), 66, np.int32)
    plain = Batch(targets, targets, np.ones(targets.shape, np.float32))
    batch = hide(plain, WithMask(Bytes()), 0.15, np.random.default_rng(0))
    chosen = batch.weights > 0
    assert abs(chosen.mean() - 0.15) < 0.005
    shown = batch.tokens[chosen]
    assert abs((shown == MASK).mean() - 0.8) < 0.02
    assert abs((shown == 66).mean() - 0.1) < 0.015
    random = shown[(shown != MASK) & (shown != 66)]
    assert abs(len(random) / len(shown) - 0.1) < 0.015
    assert (random.min(), random.max()) == (1, 256)
    np.testing.assert_array_equal(batch.tokens[~chosen], 66)


@pytest.mark.parametrize("data", [Sentences(), Packed(Sentences()), Streamed(Sentences())])
def test_training_asks_for_tokens_of_the_text_only(data):
    plain = data.training_batches(64, 8, 3)
    masked = Masked(data).training_batches(64, 8, 3)
    for _ in range(20):
        before, batch = next(plain), next(masked)
        np.testing.assert_array_equal(batch.targets, before.targets)
        real = (before.weights > 0) & (before.targets != 0)
        np.testing.assert_array_equal(batch.segments >= 0, real)
        chosen = batch.weights > 0
        assert chosen.any()
        assert not (chosen & ~real).any()
        np.testing.assert_array_equal(batch.tokens[~chosen], batch.targets[~chosen])
        if before.segments is not None:
            np.testing.assert_array_equal(batch.segments[real], before.segments[real])


def test_evaluation_is_the_same_every_time():
    data = Masked(Sentences())
    first, second = (list(data.evaluation_batches("valid", 64, 32, 4)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        for ours, theirs in zip(one[:4], other[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_evaluation_sees_all_tokens_and_asks_for_a_share():
    data = Masked(Sentences(), share=0.3)
    asked = seen = 0
    plain = data.data.evaluation_batches("valid", 64, 64, 4)
    for before, batch in zip(plain, data.evaluation_batches("valid", 64, 64, 4), strict=True):
        assert not ((batch.weights > 0) & (before.weights == 0)).any()
        assert (batch.targets[batch.segments >= 0] > 0).all()
        asked += batch.weights.sum()
        seen += (batch.segments >= 0).sum()
    total = sum(map(len, data.sequences("valid")))
    assert seen >= total
    assert abs(asked / total - 0.3) < 0.03


def test_tokens_before_the_scored_ones_stay_visible():
    windows = list(Masked(Sentences()).evaluation_batches("valid", 64, 16, 4))
    for before, batch in zip(
        Sentences().evaluation_batches("valid", 64, 16, 4), windows, strict=True
    ):
        for weights, segments in zip(before.weights, batch.segments, strict=True):
            last = np.flatnonzero(weights).max(initial=-1)
            np.testing.assert_array_equal(segments >= 0, np.arange(64) <= last)


@pytest.mark.parametrize("data", [Sentences(), Packed(Sentences()), Streamed(Sentences())])
def test_a_restored_iterator_goes_on_exactly(data):
    iterator = Masked(data).training_batches(32, 4, 1)
    for _ in range(9):
        next(iterator)
    place = json.loads(json.dumps(iterator.get_state()))
    want = [next(iterator) for _ in range(9)]
    again = Masked(data).training_batches(32, 4, 1)
    again.set_state(place)
    assert again.get_state() == place
    for expected in want:
        for ours, theirs in zip(next(again)[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_piece_is_hidden_anew_in_each_epoch():
    iterator = Masked(Streamed(Sentences())).training_batches(64, 4, 0)
    first = [next(iterator).weights for _ in range(2)]
    assert not np.array_equal(*first)


def test_wrappers_survive_json_and_speak_for_their_data():
    data = Masked(Packed(Sentences()), share=0.2)
    assert from_json(to_json(data)) == data
    assert data.manifest() == Sentences().manifest() == {}
    np.testing.assert_array_equal(data.sequences("test")[3], Sentences().sequences("test")[3])


@pytest.mark.parametrize("share", [0, -0.1, 1.5])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(ValueError, match="wanted more than 0 and at most 1"):
        Masked(Sentences(), share=share)
