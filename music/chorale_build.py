"""Bach's chorales from the scores in music21's corpus; needs music21, which only developers have.

Read the scores, drop what is no four-part chorale on the grid, drop near-duplicates, split by name.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import music21
import numpy as np

from longctx.data.base import SPLITS, Split
from music.chorale import REST, STEPS_PER_QUARTER, VOICES, Chorale, change_onsets
from music.chorale_overlap import Grams, contained, outer_ngrams, similarity
from music.chorales import pack

TRAIN_SHARE, VALID_SHARE = 0.6, 0.2
MOST_SHARED = 0.5
MOST_SILENCE = 0.3

KRN_LICENCE = "krn encoding: rights to derivative electronic formats reserved (CCARH)"


class UnfitError(Exception):
    """A score that is not a four-part chorale on the grid; the text is the reason."""


@dataclass(frozen=True)
class Collection:
    """What a build gives: the pieces of each split, and a reason for every file left out."""

    pieces: dict[Split, list[Chorale]]
    dropped: dict[str, str]


def corpus_files() -> list[Path]:
    """Return the scores of Bach in the installed music21, in order of BWV number."""
    folder = Path(music21.__file__).parent / "corpus" / "bach"
    return sorted((path for path in folder.iterdir() if path.is_file()), key=_natural)


def build(paths: Iterable[Path]) -> Collection:
    """Return the chorales of the scores, without near-duplicates, split by name.

    Raises:
        ValueError: a piece of valid or test has half of its n-grams in train.
    """
    kept: dict[str, Chorale] = {}
    grams: dict[str, Grams] = {}
    dropped: dict[str, str] = {}
    for path in paths:
        try:
            chorale = read_score(path)
            own = outer_ngrams(chorale)
            _refuse_copy(own, grams)
        except UnfitError as reason:
            dropped[path.name] = str(reason)
        else:
            kept[chorale.name], grams[chorale.name] = chorale, own
    pieces: dict[Split, list[Chorale]] = {split: [] for split in SPLITS}
    for name, chorale in kept.items():
        pieces[split_of(name)].append(chorale)
    check_split(pieces)
    return Collection(pieces, dropped)


def split_of(name: str) -> Split:
    """Return the split of a piece from a hash of its name, whatever other pieces there are."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "valid" if share < TRAIN_SHARE + VALID_SHARE else "test"


def check_split(pieces: Mapping[Split, Iterable[Chorale]]) -> None:
    """Refuse a split in which a piece of valid or test has half of its n-grams in train.

    Raises:
        ValueError: there is such a piece; the text names it.
    """
    train = [outer_ngrams(chorale) for chorale in pieces["train"]]
    for split in ("valid", "test"):
        for chorale in pieces[split]:
            share = contained(outer_ngrams(chorale), train)
            if share >= MOST_SHARED:
                raise ValueError(
                    f"{chorale.name} of {split} has {share:.0%} of its n-grams in train; wanted "
                    f"less than {MOST_SHARED:.0%}: move it to train or drop it"
                )


def npz_bytes(pieces: dict[Split, list[Chorale]]) -> bytes:
    """Return the embedded file; the zip inside has fixed dates, so equal pieces, equal bytes."""
    buffer = BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **pack(pieces))
    return buffer.getvalue()


def _natural(path: Path) -> list[str | int]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def _refuse_copy(own: Grams, kept: Mapping[str, Grams]) -> None:
    nearest = max(kept, key=lambda name: similarity(own, kept[name]), default=None)
    if nearest is not None and (share := similarity(own, kept[nearest])) >= MOST_SHARED:
        raise UnfitError(f"near-duplicate of {nearest} ({share:.2f} of the shorter piece)")


def read_score(path: Path) -> Chorale:
    """Return the chorale in a MusicXML score, without silence before and after.

    The key is music21's estimate (Krumhansl-Schmuckler) from the four voices, because signatures
    are often modal; grace notes are left out, and repeats are not played twice.

    Raises:
        UnfitError: the file is not to be copied, the score has no four single voices, notes lie
            off the sixteenth grid, or all voices rest for more than 30% of the piece.
    """
    if path.suffix == ".krn":
        raise UnfitError(KRN_LICENCE)
    parts = _voices(music21.converter.parse(path, forceSource=True))
    flats = [part.flatten() for part in parts]
    pitch, onset, fermata = _grid(flats)
    silent = (pitch == REST).all(axis=1)
    if silent.mean() > MOST_SILENCE:
        raise UnfitError(
            f"instrumental interludes: all voices rest for {silent.mean():.0%} of the piece"
        )
    first, last = np.flatnonzero(~silent)[[0, -1]].tolist()
    keep = slice(first, last + 1)
    chorale = Chorale(pitch[keep], onset[keep], fermata[keep], name=path.stem, **_key(parts))
    chorale = replace(chorale, meter=_meter(flats[0]))
    padding = next(iter(parts[0].getElementsByClass("Measure"))).paddingLeft
    return replace(chorale, pickup=-(_steps(padding) + first) % chorale.bar)


def _voices(score: Any) -> list[Any]:
    """Return the parts whose name begins with a voice's, else all four parts of four."""
    parts = list(score.parts)
    named = {voice: [p for p in parts if _first_word(p.partName) == voice] for voice in VOICES}
    crowded = [voice for voice, found in named.items() if len(found) > 1]
    if crowded:
        raise UnfitError(f"more than four voices: several parts sing {', '.join(crowded)}")
    if all(named.values()):
        return [named[voice][0] for voice in VOICES]
    if len(parts) == len(VOICES):
        return parts
    raise UnfitError(f"no four voices: {len(parts)} parts, not named after the voices")


def _first_word(text: str | None) -> str:
    return (text or "").lower().partition("\r")[0].split(" ")[0]


def _grid(flats: list[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pitch and onset [steps, 4] and fermata [steps] of four flat parts."""
    steps = max(_steps(flat.highestTime) for flat in flats)
    pitch = np.full((steps, len(VOICES)), REST, np.int8)
    struck = np.zeros((steps, len(VOICES)), np.bool_)
    fermata = np.zeros(steps, np.bool_)
    for voice, flat in enumerate(flats):
        for note in flat.notes:
            if note.duration.isGrace:
                continue
            if len(note.pitches) != 1:
                raise UnfitError(f"a chord in the {VOICES[voice]}")
            start, end = _steps(note.offset), _steps(note.offset + note.quarterLength)
            pitch[start:end, voice] = note.pitches[0].midi
            struck[start, voice] = note.tie is None or note.tie.type == "start"
            if voice == 0:
                fermata[start:end] = _under_fermata(note)
    # A tie that ends on another pitch than it began on is a slip of the encoder: a new note.
    return pitch, struck | change_onsets(pitch), fermata


def _under_fermata(note: Any) -> bool:
    return any(isinstance(mark, music21.expressions.Fermata) for mark in note.expressions)


def _steps(quarters: Any) -> int:
    steps = quarters * STEPS_PER_QUARTER
    if steps != int(steps):
        raise UnfitError(f"off the sixteenth grid at quarter {float(quarters):g}")
    return int(steps)


def _key(parts: list[Any]) -> dict[str, Any]:
    key: Any = music21.stream.Score(parts).analyze("key")
    return {"tonic": key.tonic.pitchClass, "minor": key.mode == "minor"}


def _meter(flat: Any) -> tuple[int, int]:
    signature = flat.getElementsByClass("TimeSignature")[0]
    return signature.numerator, signature.denominator
