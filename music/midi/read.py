"""Any bytes in, music or a reason out."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool
from symusic.core import ScoreTick

from music.midi.chunks import Chunks, split_chunks
from music.midi.clock import LAST_TICK, cut, in_seconds, in_sequence, read_division
from music.midi.events import Events, read_events
from music.midi.limits import Damage, Limits, Unreadable
from music.midi.metas import Metas, read_metas
from music.midi.score import NOTES_OFF, PEDAL, PEDAL_DOWN, build_score

DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Read:
    """What became of one MIDI file.

    `ok`: all of its music was read, however unusual the file; `repaired`: the file was damaged and
    what could be saved was read; `skipped`: there is no music to be had.
    """

    status: Literal["ok", "repaired", "skipped"]
    reasons: tuple[str, ...] = ()
    """What is wrong with the file, as predicates of it; none where it is `ok`."""
    score: ScoreTick | None = None
    """The music, with at least one note; none where the file was skipped."""


def read_midi(source: str | Path | bytes, limits: Limits = DEFAULT_LIMITS) -> Read:
    """Return the music of a MIDI file, given its path or bytes; no bytes raise an exception.

    Our own reader goes over the bytes first. Where it finds a plain file, symusic gives the music
    if it finds the same notes begin; else the music is what our reader found. So symusic, which is
    native code, never sees damaged bytes; see `music.midi.isolated` for guards beyond that.

    Of one pitch of a channel in a track, the note that began first ends first. Tracks of format 2
    follow one another. Parts of SMPTE frames become ticks of a score that keeps their seconds.
    """
    damage = Damage()
    try:
        content = source if isinstance(source, bytes) else _content(Path(source), limits)
        if len(content) > limits.bytes:
            raise Unreadable(f"has {len(content):,} bytes; wanted at most {limits.bytes:,}")
        score = _read(content, limits, damage)
    except Unreadable as reason:
        return Read("skipped", (str(reason), *damage.reasons()))
    reasons = damage.reasons()
    return Read("repaired" if reasons else "ok", reasons, score)


def _content(path: Path, limits: Limits) -> bytes:
    try:
        if not path.is_file():
            raise Unreadable("is not a file; wanted a MIDI file")
        size = path.stat().st_size
        if size > limits.bytes:
            raise Unreadable(f"has {size:,} bytes; wanted at most {limits.bytes:,}")
        return path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be opened: {error.strerror}") from error


def _read(content: bytes, limits: Limits, damage: Damage) -> ScoreTick:
    chunks = split_chunks(content, limits, damage)
    division = read_division(chunks.division)
    tracks = _all_events(chunks, limits, damage)
    if division.tempo is not None:
        tracks = in_seconds(tracks, division)
    if chunks.format == 2:
        tracks = in_sequence(tracks)
    tracks = cut(tracks, division.ticks_per_quarter, limits, damage)
    metas = [read_metas(track.metas, damage) for track in tracks]
    notes = sum(_count_notes(track) for track in tracks)
    if not notes:
        raise Unreadable("has no notes")
    if not damage.kinds and _is_plain(chunks, tracks, metas):
        score = _symusic(content)
        if score is not None and _has_these_notes(score, tracks):
            return score
    return build_score(division.ticks_per_quarter, list(zip(tracks, metas, strict=True)), damage)


def _all_events(chunks: Chunks, limits: Limits, damage: Damage) -> list[Events]:
    end = time.monotonic() + limits.seconds
    tracks, notes = [], 0
    for track in chunks.tracks:
        tracks.append(read_events(track, damage))
        notes += _count_notes(tracks[-1])
        if notes > limits.notes:
            raise Unreadable(f"has more than {limits.notes:,} notes")
        if time.monotonic() > end:
            raise Unreadable(f"takes more than {limits.seconds:g} seconds to read")
    return tracks


def _note_ons(track: Events) -> Bool[np.ndarray, " n"]:
    _, status, _, velocity = track.messages
    return (status >> 4 == 9) & (velocity > 0)


def _count_notes(track: Events) -> int:
    return int(np.count_nonzero(_note_ons(track)))


def _is_plain(chunks: Chunks, tracks: list[Events], metas: list[Metas]) -> bool:
    """Tell whether symusic reads all of a file right but notes that never end."""
    return (
        chunks.plain
        and chunks.format < 2
        and chunks.division < 0x8000
        and all(meta.utf8 for meta in metas)
        and all(track.plain and track.end <= LAST_TICK for track in tracks)
        and not any(_has_loose_controls(track) for track in tracks)
    )


def _has_loose_controls(track: Events) -> bool:
    """Tell whether controls end notes, or a pedal is held to the end or has no notes beside it."""
    _, status, first, second = track.messages
    control = status >> 4 == 11
    if not control.any():
        return False
    if np.isin(first[control], NOTES_OFF).any():
        return True
    channels, pedal = status & 15, control & (first == PEDAL)
    for channel in np.unique(channels[pedal]):
        values = second[pedal & (channels == channel)]
        if values[-1] >= PEDAL_DOWN or not (status == 0x90 | channel).any():
            return True
    return False


def _has_these_notes(score: ScoreTick, tracks: list[Events]) -> bool:
    """Tell whether the notes of a score begin where those of the tracks do, at their pitches."""
    ours = [track.messages[:, _note_ons(track)] for track in tracks]
    theirs = [track.notes.numpy() for track in score.tracks]
    begun = np.concatenate([ticks << 7 | pitches for ticks, _, pitches, _ in ours])
    found = [notes["time"].astype(np.int64) << 7 | notes["pitch"] for notes in theirs]
    return bool(found) and np.array_equal(np.sort(begun), np.sort(np.concatenate(found)))


def _symusic(content: bytes) -> ScoreTick | None:
    try:
        return ScoreTick.from_midi(content)
    except (RuntimeError, ValueError):
        return None
