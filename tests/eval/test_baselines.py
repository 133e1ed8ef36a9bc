from dataclasses import dataclass

import numpy as np
import pytest

from eval.baselines import BEAT, SMOOTHING, baselines
from longctx.data.base import DataConfig
from music.chorales import Chorales
from music.jsb import JSB


@dataclass(frozen=True)
class Words:
    """A vocabulary of the boundary and three words, two voices to a step."""

    names = ("boundary", "a", "b", "c")
    stride = 2
    boundary = 0

    def encode(self, piece: list[int]) -> np.ndarray:
        return np.array(piece)

    def decode(self, tokens: np.ndarray) -> list[int]:
        return tokens.tolist()


@dataclass(frozen=True)
class Pieces(DataConfig):
    train: tuple[tuple[int, ...], ...]
    valid: tuple[tuple[int, ...], ...]

    def vocabulary(self) -> Words:
        return Words()

    def sequences(self, split):
        return [np.array(piece) for piece in getattr(self, split)]


def test_the_published_ladder_of_jsb(shared_data):
    scores = baselines(JSB(str(shared_data("jsb") / "jsb16_satb.npz")), "valid")
    assert scores["uniform"] == pytest.approx(3.871, abs=0.0005)
    assert scores["unigram"] == pytest.approx(2.611, abs=0.0005)
    assert scores["beat_copy_else_bigram"] == pytest.approx(0.711, abs=0.001)
    assert scores["copy_else_bigram"] == pytest.approx(0.935, abs=0.001)


@pytest.mark.parametrize("split", ["valid", "test"])
def test_knowing_more_costs_less_on_the_embedded_chorales(split):
    scores = baselines(Chorales(), split)
    ladder = ["uniform", "unigram", "copy_else_bigram", "beat_copy_else_bigram"]
    assert list(scores) == ladder
    assert sorted(ladder, key=lambda name: -scores[name]) == ladder
    assert 0.7 < scores["beat_copy_else_bigram"] < 0.8


def test_counts_by_hand():
    """Two voices, two steps: the first always sings a then a, the second b then c."""
    data = Pieces(train=((1, 2, 1, 3),) * 2, valid=((1, 2, 1, 3),))
    scores = baselines(data, "valid")
    s = SMOOTHING
    assert scores["uniform"] == pytest.approx(np.log(4))
    first, second = (4 + s) / (4 + 4 * s), (2 + s) / (4 + 4 * s)
    assert scores["unigram"] == pytest.approx(-np.log([first, second, first, second]).mean())
    # At the start there is nothing to copy: a bigram from the boundary, which is not a choice.
    start, certain = (2 + s) / (2 + 3 * s), (2 + s) / (2 + 2 * s)
    costs = -np.log([start, start, certain, certain * start])
    assert scores["copy_else_bigram"] == pytest.approx(costs.mean())
    assert scores["beat_copy_else_bigram"] == pytest.approx(costs.mean())


def test_the_beat_tells_when_voices_move():
    """Voices move once a beat and never inside it: seen by place, moving is no surprise."""
    notes = [1, 2, 3, 1, 2, 1, 3, 2]
    piece = tuple(np.repeat(notes, BEAT).repeat(2).tolist())
    scores = baselines(Pieces(train=(piece,) * 5, valid=(piece,)), "valid")
    assert scores["beat_copy_else_bigram"] < 0.5 * scores["copy_else_bigram"]


def test_each_token_has_one_probability_mass_of_one():
    """Summed over all that a voice could sing next, each baseline gives 1."""
    train = ((1, 2, 1, 3, 2, 3, 2, 2),)
    for name in ("unigram", "copy_else_bigram", "beat_copy_else_bigram"):
        mass = 0.0
        prefix = (1, 2, 2, 2)
        without = baselines(Pieces(train, (prefix,)), "valid")[name] * len(prefix)
        for token in range(4):
            whole = baselines(Pieces(train, ((*prefix, token),)), "valid")[name] * (len(prefix) + 1)
            mass += np.exp(-(whole - without))
        assert mass == pytest.approx(1), name


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="the split 'valid' has no tokens"):
        baselines(Pieces(train=((1, 2),), valid=()), "valid")
    with pytest.raises(ValueError, match="the split 'train' has no tokens"):
        baselines(Pieces(train=(), valid=((1, 2),)), "valid")
