"""Music from the events of a file's tracks, laid out as symusic does.

One track for each chunk, channel and program; a note belongs to the program it began with. Of one
pitch of a channel, the note that began first ends first. Controls 120 and 123 to 127 (all sound
off, all notes off and the modes that imply it; MIDI 1.0 Detailed Specification, 1996) end the
channel's notes in their chunk. What never ends, notes and pedals alike, ends with the chunk; but
where notes of a pitch are left over, one of its note-offs is missing, and none of its notes sounds
on when the next begins: else each would take the end of the next.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from symusic.core import (
    ControlChangeTick,
    NoteTickList,
    PedalTick,
    PitchBendTick,
    ScoreTick,
    TrackTick,
)

from music.midi.events import Events
from music.midi.limits import Damage
from music.midi.metas import Metas

PEDAL = 64
PEDAL_DOWN = 64
"""The lowest value that means down."""
NOTES_OFF = (120, 123, 124, 125, 126, 127)
DRUM_CHANNEL = 9
MOST_LENT = 1 << 20
"""Messages, counted once for each part that gets them."""

NEVER_END = "has notes that never end, ended where their pitch begins again or with their track"
Message = tuple[int, int, int, int]
"""Tick, status and two data bytes."""


_Note = list[int]
"""Start, end, pitch and velocity."""


@dataclass
class _Part:
    """What one program of a channel plays, by start."""

    notes: list[_Note] = field(default_factory=list)
    others: list[Message] = field(default_factory=list)


_Parts = dict[tuple[int, int], _Part]
"""By channel and program."""
_Sounding = dict[int, deque[_Note]]
"""The notes of a channel that have not ended, by pitch, oldest first."""


def build_score(
    ticks_per_quarter: int, tracks: list[tuple[Events, Metas]], damage: Damage
) -> ScoreTick:
    """Return the music of all tracks; notes that never end are counted in `damage`."""
    score = ScoreTick(ticks_per_quarter)
    parts, silent = [], []
    for events, _ in tracks:
        played, unheard = _parts(events, damage)
        parts.append(played)
        silent += unheard
    _lend_pedals(parts, silent, damage)
    for (events, metas), played in zip(tracks, parts, strict=True):
        for (channel, program), part in sorted(played.items()):
            score.tracks.append(_track(part, metas.name, channel, program, events.end))
        if metas.lyrics:
            words = TrackTick(metas.name, 0, False)
            for lyric in metas.lyrics:
                words.lyrics.append(lyric)
            score.tracks.append(words)
    for kind in ("tempos", "time_signatures", "key_signatures", "markers"):
        changes = [change for _, metas in tracks for change in getattr(metas, kind)]
        getattr(score, kind).extend(sorted(changes, key=lambda change: change.time))
    return score


def _parts(events: Events, damage: Damage) -> tuple[_Parts, list[Message]]:
    """Return the parts with notes, and the other messages of channels without notes."""
    parts: _Parts = defaultdict(_Part)
    struck: dict[tuple[int, int], list[_Note]] = defaultdict(list)
    sounding: list[_Sounding] = [defaultdict(deque) for _ in range(16)]
    program = [0] * 16
    others: list[tuple[int, Message]] = []  # program at that time, message
    for message in zip(*events.messages.tolist(), strict=True):
        tick, status, first, second = message
        kind, channel = status >> 4, status & 15
        if kind == 9 and second:
            note = [tick, tick, first, second]
            parts[channel, program[channel]].notes.append(note)
            sounding[channel][first].append(note)
            struck[channel, first].append(note)
        elif kind in (8, 9):
            if first in sounding[channel]:
                began = sounding[channel][first]
                began.popleft()[1] = tick
                if not began:
                    del sounding[channel][first]
        elif kind == 12:
            program[channel] = first
        elif kind == 11 and first in NOTES_OFF:
            _end_notes(sounding[channel], tick)
        if kind in (11, 14):
            others.append((program[channel], message))
    for channel, open_notes in enumerate(sounding):
        for pitch, began in list(open_notes.items()):
            damage.add(NEVER_END, len(began))
            _pair_anew(struck[channel, pitch], len(began), events.end)
    return dict(parts), list(_assign(others, parts))


def _end_notes(sounding: _Sounding, tick: int) -> None:
    """End the notes that sound on a channel."""
    for began in sounding.values():
        for note in began:
            note[1] = tick
    sounding.clear()


def _pair_anew(notes: list[_Note], missing: int, last: int) -> None:
    """End the notes of a pitch, the last ones without an end, at the next end or next start."""
    ends = deque(note[1] for note in notes[: len(notes) - missing])
    starts = [note[0] for note in notes[1:]]
    for note, following in zip(notes, [*starts, max(last, notes[-1][0])], strict=True):
        while ends and ends[0] <= note[0]:
            ends.popleft()
        if ends and ends[0] <= following:
            note[1] = ends.popleft()
        else:
            note[1] = following


def _assign(others: list[tuple[int, Message]], parts: _Parts) -> Iterator[Message]:
    """Give controls and bends to the part of their program, or else to the channel's next one.

    Yields those of channels without a part.
    """
    starts = {
        channel: sorted((part.notes[0][0], key) for key, part in parts.items() if key[0] == channel)
        for channel in {key[0] for key in parts}
    }
    for program, message in others:
        channel = message[1] & 15
        if channel not in starts:
            yield message
            continue
        key = (channel, program)
        if key not in parts:
            later = [key for start, key in starts[channel] if start >= message[0]]
            key = later[0] if later else starts[channel][-1][1]
        parts[key].others.append(message)


def _lend_pedals(parts: list[_Parts], silent: list[Message], damage: Damage) -> None:
    """Give pedals of tracks without notes to the parts of their channel in other tracks."""
    pedals = [m for m in silent if m[1] >> 4 == 11 and m[2] == PEDAL]
    if not pedals:
        return
    if len(pedals) * sum(map(len, parts)) > MOST_LENT:
        damage.add("has a pedal track that is too long for so many tracks, left out")
        return
    for played in parts:
        for (channel, _), part in played.items():
            lent = [m for m in pedals if m[1] & 15 == channel]
            if lent:
                part.others = sorted(part.others + lent, key=lambda m: m[0])


def _track(part: _Part, name: str, channel: int, program: int, end: int) -> TrackTick:
    track = TrackTick(name, program, channel == DRUM_CHANNEL)
    start, stop, pitch, velocity = np.array(part.notes, np.int64).T
    track.notes = NoteTickList.from_numpy(
        start.astype(np.int32),
        (stop - start).astype(np.int32),
        pitch.astype(np.int8),
        velocity.astype(np.int8),
    )
    down = None
    for tick, status, first, second in part.others:
        if status >> 4 == 14:
            track.pitch_bends.append(PitchBendTick(tick, (second << 7 | first) - 8192))
            continue
        track.controls.append(ControlChangeTick(tick, first, second))
        if first == PEDAL and second >= PEDAL_DOWN and down is None:
            down = tick
        elif first == PEDAL and second < PEDAL_DOWN and down is not None:
            track.pedals.append(PedalTick(down, tick - down))
            down = None
    if down is not None:
        track.pedals.append(PedalTick(down, max(end, down) - down))
    return track
