"""How much of one chorale is in another, whatever the key and the rhythm: n-grams of outer voices.

Bach set many tunes several times, and collections print some settings twice. A model that has seen
a setting in training must not be examined on it.
"""

from collections.abc import Iterable

import numpy as np

from music.chorale import REST, Chorale

NGRAM = 8
"""Outer-voice events in a row that make two passages the same: about two bars, a phrase."""

Grams = frozenset[bytes]


def outer_ngrams(chorale: Chorale) -> Grams:
    """Return all runs of `NGRAM` events of soprano and bass, less the run's first soprano pitch.

    An event is a step on which both voices sound and at least one of them strikes a note; its
    content is the two pitches. So the runs are the same after transposition, after a change of
    rhythm and whatever the inner voices do.
    """
    outer, onset = chorale.pitch[:, [0, 3]], chorale.onset[:, [0, 3]]
    events = outer[onset.any(axis=1) & (outer != REST).all(axis=1)].astype(np.int16)
    if len(events) < NGRAM:
        return frozenset()
    runs = np.lib.stride_tricks.sliding_window_view(events, NGRAM, axis=0)  # [run, voice, event]
    return frozenset(run.tobytes() for run in runs - runs[:, :1, :1])


def similarity(one: Grams, other: Grams) -> float:
    """Return the shared part of the shorter piece's n-grams, 0 to 1; a fragment counts as copy."""
    shorter = min(len(one), len(other))
    return len(one & other) / shorter if shorter else 0.0


def contained(piece: Grams, others: Iterable[Grams]) -> float:
    """Return which part of a piece's n-grams occurs anywhere in the other pieces, 0 to 1."""
    return len(piece & frozenset().union(*others)) / len(piece) if piece else 0.0
