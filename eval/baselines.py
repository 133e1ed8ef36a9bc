"""What a likelihood costs without learning to compose: baselines of counts, in nats per token."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from longctx.data.base import DataConfig, Split

SMOOTHING = 0.1
"""Added to every count, so that what training never showed stays possible."""

BEAT = 4
"""Steps to a beat: sixteenths to a quarter."""


class Rows(NamedTuple):
    """All tokens of a split, piece after piece, each with what the baselines know of it."""

    token: Int[np.ndarray, " tokens"]
    voice: Int[np.ndarray, " tokens"]
    """Index in the piece modulo the vocabulary's stride."""
    place: Int[np.ndarray, " tokens"]
    """Step in the piece modulo `BEAT`."""
    last: Int[np.ndarray, " tokens"]
    """This voice's token one step earlier; on a piece's first step the boundary."""

    @property
    def copied(self) -> Bool[np.ndarray, " tokens"]:
        """Whether the voice repeats its last token."""
        return self.token == self.last


def baselines(data: DataConfig, split: Split) -> dict[str, float]:
    """Return mean negative log likelihoods of the tokens of a split under counts from train.

    * `uniform`: every token of the vocabulary alike.
    * `unigram`: the frequency of the token in its voice.
    * `copy_else_bigram`: with a probability per voice, what the voice had one step earlier; else
      one of the other tokens, by its frequency after that one where the voice did change.
    * `beat_copy_else_bigram`: the same, with a probability of copying per voice and place in the
      beat. A model that does no better has learned when voices move, and no harmony.

    Where held notes have a token of their own, what is copied is mostly that token, and the last
    two say little. Tokens are weighted alike, boundaries are not scored, and counts are smoothed
    by `SMOOTHING`.

    Raises:
        ValueError: train or the split has no tokens.
    """
    vocabulary = data.vocabulary()
    size, stride = len(vocabulary.names), vocabulary.stride
    train = _rows(data.sequences("train"), stride, "train")
    rows = _rows(data.sequences(split), stride, split)
    change = _change_log_probability(train, rows, stride, size)
    log_probabilities = {
        "uniform": np.full(len(rows.token), -np.log(size)),
        "unigram": _unigram_log_probability(train, rows, stride, size),
        "copy_else_bigram": change + _copy_log_probability(train, rows, stride, beat=1),
        "beat_copy_else_bigram": change + _copy_log_probability(train, rows, stride, beat=BEAT),
    }
    return {name: -float(values.mean()) for name, values in log_probabilities.items()}


def _rows(sequences: Sequence[np.ndarray], stride: int, split: Split) -> Rows:
    if not sum(map(len, sequences)):
        raise ValueError(f"the split {split!r} has no tokens; wanted pieces to count")
    index = np.concatenate([np.arange(len(sequence)) for sequence in sequences])
    last = [np.pad(s, (stride, 0))[: len(s)] for s in sequences]  # the boundary is token 0
    return Rows(
        token=np.concatenate(sequences),
        voice=index % stride,
        place=index // stride % BEAT,
        last=np.concatenate(last),
    )


def _unigram_log_probability(
    train: Rows, rows: Rows, stride: int, size: int
) -> Float[np.ndarray, " tokens"]:
    counts = np.full((stride, size), SMOOTHING)
    np.add.at(counts, (train.voice, train.token), 1)
    return np.log(counts / counts.sum(axis=1, keepdims=True))[rows.voice, rows.token]


def _copy_log_probability(
    train: Rows, rows: Rows, stride: int, beat: int
) -> Float[np.ndarray, " tokens"]:
    """Return log P(copied or not); on a piece's first step, where there is nothing to copy, 0."""
    counts = np.full((stride, beat, 2), SMOOTHING)
    later = train.last != 0
    key = train.voice[later], train.place[later] % beat, train.copied[later].astype(int)
    np.add.at(counts, key, 1)
    log = np.log(counts / counts.sum(axis=2, keepdims=True))
    return np.where(rows.last != 0, log[rows.voice, rows.place % beat, rows.copied.astype(int)], 0)


def _change_log_probability(
    train: Rows, rows: Rows, stride: int, size: int
) -> Float[np.ndarray, " tokens"]:
    """Return log P(token | last, token differs from last); where the token is copied, 0."""
    counts = np.full((stride, size, size), SMOOTHING)
    changed = ~train.copied
    np.add.at(counts, (train.voice[changed], train.last[changed], train.token[changed]), 1)
    counts[:, np.arange(size), np.arange(size)] = 0
    probability = counts / counts.sum(axis=2, keepdims=True)
    chosen = probability[rows.voice, rows.last, rows.token]
    return np.log(np.where(rows.copied, 1, chosen))
