"""Four-part music from a MIDI file, as a primer."""

import warnings
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int, Int8
from symusic.core import ScoreTick, TrackTick

from music.chorale import REST, STEPS_PER_QUARTER, VOICES, Chorale, change_onsets
from music.midi.limits import Limits
from music.midi.read import read_midi

MOST_BYTES = 4 << 20
MOST_STEPS = 1 << 14
"""45 minutes at 90 quarters to the minute; longer files are no primers."""

Notes = Int[np.ndarray, "_ 3"]
"""One row per note: start step, end step (exclusive) and pitch."""


def read_chorale(path: str | Path) -> Chorale:
    """Return the music of a MIDI file as four voices on the sixteenth grid.

    If every track with notes is named soprano, alto, tenor or bass, each name once, these are the
    voices. Else, four tracks with notes are the voices, highest first by mean pitch. A voice's
    newest (on one step: highest) note sounds.

    Otherwise voices are read off the sounding notes of each step from high to low: the highest is
    the soprano, the lowest the bass, the next to highest the alto, then the tenor, and the rest is
    left out. Tracks count once per channel and program, drums as silence. Notes move to the
    nearest step and last at least one.

    A damaged file gives what could be saved of its music, and a warning that says what was wrong.

    Raises:
        ValueError: no music can be read, for the reason given; or there are no notes besides
            drums, or it lasts longer than `MOST_STEPS` sixteenths.
    """
    path = Path(path)
    read = read_midi(path, Limits(bytes=MOST_BYTES))
    if read.score is None:
        raise ValueError(f"{path} {'; '.join(read.reasons)}")
    if read.status == "repaired":
        warnings.warn(f"{path} was damaged: it {'; it '.join(read.reasons)}", stacklevel=2)
    score = read.score
    tracks = [track for track in score.tracks if not track.is_drum]
    notes = [_grid_notes(track, score.ticks_per_quarter, path) for track in tracks]
    if not any(map(len, notes)):
        raise ValueError(f"{path} has no notes besides drums; wanted four-part music")
    steps = int(max(voice[:, 1].max() for voice in notes if len(voice)))
    voices = _voices([track.name for track in tracks], notes)
    if voices is not None:
        columns = [_line(voice, steps) for voice in voices]
        pitch = np.stack([column for column, _ in columns], axis=1)
        onset = np.stack([begin for _, begin in columns], axis=1)
    else:
        pitch, onset = _reduce(np.concatenate(notes), steps)
    meter, pickup = _meter(score)
    return Chorale(pitch, onset, meter=meter, pickup=pickup, name=path.stem)


def _grid_notes(track: TrackTick, ticks_per_quarter: int, path: Path) -> Notes:
    """Return the notes of a track on the grid; ticks are rounded, half a step upwards."""
    arrays = track.notes.numpy()
    start, length = arrays["time"].astype(np.int64), arrays["duration"].astype(np.int64)
    ticks = np.stack([start, start + length])
    steps = (2 * STEPS_PER_QUARTER * ticks + ticks_per_quarter) // (2 * ticks_per_quarter)
    starts, ends = steps[0], np.maximum(steps[1], steps[0] + 1)
    if steps.size and not (starts.min() >= 0 and ends.max() <= MOST_STEPS):
        raise ValueError(
            f"{path} has notes from sixteenth {starts.min():,} to {ends.max():,}; wanted 0 to at "
            f"most {MOST_STEPS:,}: cut the part that is to be continued"
        )
    return np.stack([starts, ends, arrays["pitch"].astype(np.int64)], axis=1)


def _voices(names: list[str], notes: list[Notes]) -> list[Notes] | None:
    """Return the notes of soprano, alto, tenor and bass, if the tracks with notes are voices."""
    sounding = [
        (name.strip().lower(), voice)
        for name, voice in zip(names, notes, strict=True)
        if len(voice)
    ]
    named = {name: voice for name, voice in sounding if name in VOICES}
    if len(named) == len(sounding):
        return [named.get(voice, np.empty((0, 3), np.int64)) for voice in VOICES]
    if len(sounding) == len(VOICES):
        return sorted((voice for _, voice in sounding), key=lambda voice: -voice[:, 2].mean())
    return None


def _line(
    notes: Notes, steps: int
) -> tuple[Int8[np.ndarray, " steps"], Bool[np.ndarray, " steps"]]:
    """Return pitch and onset of one voice: a note ends where the next begins, or earlier."""
    notes = notes[np.lexsort((notes[:, 2], notes[:, 0]))]
    highest = np.append(np.diff(notes[:, 0]) > 0, True)[: len(notes)]
    starts, ends, pitches = notes[highest].T
    ends = np.minimum(ends, np.append(starts[1:], steps))
    pitch, onset = np.full(steps, REST, np.int8), np.zeros(steps, np.bool_)
    lengths = ends - starts
    offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    pitch[np.repeat(starts, lengths) + offsets] = np.repeat(pitches, lengths)
    onset[starts] = True
    return pitch, onset


def _reduce(
    notes: Notes, steps: int
) -> tuple[Int8[np.ndarray, "steps 4"], Bool[np.ndarray, "steps 4"]]:
    """Return four voices from the notes that sound at each step, high to low, and their onsets."""
    starts, ends, pitches = notes.T
    change = np.zeros((steps + 1, 128), np.int32)
    np.add.at(change, (starts, pitches), 1)
    np.add.at(change, (ends, pitches), -1)
    sounding = np.cumsum(change, axis=0)[:steps] > 0
    struck = np.zeros((steps, 128), np.bool_)
    struck[starts, pitches] = True
    count = sounding.sum(axis=1)
    from_top = np.cumsum(sounding[:, ::-1], axis=1)[:, ::-1]
    rank = np.where(sounding, from_top, 0)  # 1 for the highest; 0 for silence
    wanted = np.stack(
        [
            np.minimum(count, 1),
            np.where(count > 2, 2, 0),
            np.where(count > 3, 3, 0),
            np.where(count > 1, count, 0),
        ],
        axis=1,
    )
    found = (rank[:, None, :] == wanted[:, :, None]).argmax(axis=2)
    pitch = np.where(wanted > 0, found, REST).astype(np.int8)
    begins = np.take_along_axis(struck, np.maximum(pitch, 0).astype(np.int64), axis=1)
    return pitch, (begins & (pitch != REST)) | change_onsets(pitch)


def _meter(score: ScoreTick) -> tuple[tuple[int, int], int]:
    """Return the first time signature, or 4/4 where none is usable, and the pickup in steps.

    A signature for one bar only that is shorter than the next one's bar is a pickup.
    """
    signatures = sorted((s.time, s.numerator, s.denominator) for s in score.time_signatures)
    if not signatures or any(n < 1 or d not in (1, 2, 4, 8, 16) for _, n, d in signatures[:2]):
        return (4, 4), 0
    (start, beats, unit), *later = signatures
    if later:
        change, next_beats, next_unit = later[0]
        bar, next_bar = beats * 16 // unit, next_beats * 16 // next_unit
        ticks = bar * score.ticks_per_quarter // STEPS_PER_QUARTER
        if start == 0 and change == ticks and bar < next_bar:
            return (next_beats, next_unit), bar
    return (beats, unit), 0
