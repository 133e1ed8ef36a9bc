from dataclasses import replace

import numpy as np
import pytest

from longctx.data.base import SPLITS
from music.chorale import REST, Chorale, change_onsets
from music.chorale_overlap import NGRAM, contained, outer_ngrams, similarity
from music.chorales import load_chorales


@pytest.fixture(scope="module")
def grams() -> dict[str, dict[str, frozenset[bytes]]]:
    return {split: {c.name: outer_ngrams(c) for c in load_chorales(split)} for split in SPLITS}


@pytest.mark.parametrize("split", ["valid", "test"])
def test_no_examined_piece_has_half_of_its_ngrams_in_train(grams, split):
    shares = {name: contained(own, grams["train"].values()) for name, own in grams[split].items()}
    worst = max(shares, key=lambda name: shares[name])
    assert shares[worst] < 0.5, f"{worst} has {shares[worst]:.0%} of its n-grams in train"
    assert shares[worst] > 0.2, "the measure no longer sees passages that Bach used twice"


def test_no_two_pieces_are_near_duplicates(grams):
    pieces = [piece for split in SPLITS for piece in grams[split].items()]
    pairs = ((a, b) for i, a in enumerate(pieces) for b in pieces[:i])
    assert [(a[0], b[0]) for a, b in pairs if similarity(a[1], b[1]) >= 0.5] == []


def transposed(chorale: Chorale, semitones: int) -> Chorale:
    pitch = np.where(chorale.pitch == REST, REST, chorale.pitch + semitones).astype(np.int8)
    return replace(chorale, pitch=pitch)


def test_a_copy_is_seen_in_another_key_rhythm_and_with_other_inner_voices():
    chorale = load_chorales("test")[0]
    own = outer_ngrams(chorale)
    assert len(own) > 20
    assert outer_ngrams(transposed(chorale, -5)) == own
    slower = replace(
        chorale,
        pitch=chorale.pitch.repeat(2, axis=0),
        onset=np.stack([chorale.onset, np.zeros_like(chorale.onset)], axis=1).reshape(-1, 4),
        fermata=None,
    )
    assert outer_ngrams(slower) == own
    pitch = chorale.pitch.copy()
    pitch[:, 1:3] = REST
    assert outer_ngrams(Chorale(pitch, chorale.onset & (pitch != REST))) == own


def test_a_fragment_counts_as_a_copy_and_another_piece_does_not():
    one, other = load_chorales("test")[:2]
    half = one.pitch[: one.steps // 2]
    fragment = outer_ngrams(Chorale(half, one.onset[: len(half)] | change_onsets(half)))
    assert similarity(outer_ngrams(one), fragment) == 1
    assert contained(fragment, [outer_ngrams(other), outer_ngrams(one)]) == 1
    assert contained(outer_ngrams(one), [fragment]) < 0.6
    assert similarity(outer_ngrams(one), outer_ngrams(other)) < 0.1


def test_a_piece_shorter_than_an_ngram_shares_nothing():
    pitch = np.arange(60, 60 + NGRAM - 1, dtype=np.int8)[:, None].repeat(4, axis=1)
    short = outer_ngrams(Chorale(pitch, change_onsets(pitch)))
    assert (len(short), similarity(short, short), contained(short, [short])) == (0, 0, 0)
