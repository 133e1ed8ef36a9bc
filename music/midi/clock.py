"""Time in a MIDI file: what a tick is, formats that play track after track, and the longest piece.

Standard MIDI Files 1.0 (MIDI Manufacturers Association, 1996).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from music.midi.events import Events
from music.midi.limits import Damage, Limits, Unreadable
from music.midi.metas import TEMPO

DEFAULT_TEMPO = 500_000
"""Microseconds per quarter before a file sets any: 120 quarters per minute."""
LAST_TICK = 2**31 - 1
"""The last tick a score can hold."""

# Frames per second, by the division's first byte, and the microseconds that 30 of 29.97 take.
_FRAMES = {0xE8: 24, 0xE7: 25, 0xE3: 30, 0xE2: 30}
_DROP_FRAME = 0xE3


@dataclass(frozen=True)
class Division:
    """What a file's ticks mean: `scale` ticks of the score for one of the file."""

    ticks_per_quarter: int
    tempo: int | None = None
    """Microseconds per quarter throughout, where ticks are parts of a second."""
    scale: int = 1


def read_division(division: int) -> Division:
    """Return what the division in a header means.

    Ticks that divide SMPTE frames are parts of a second, whatever the tempo. Their score has
    quarters of half a second (a thousandth more for 29.97 frames) and two ticks for each, which
    is exact.

    Raises:
        Unreadable: the division is 0, or no number of frames that there is.
    """
    if 0 < division < 0x8000:
        return Division(division)
    first, parts = division >> 8, division & 0xFF
    if first not in _FRAMES or not parts:
        raise Unreadable(
            f"has the time division {division:#06x}; wanted ticks per quarter note, 1 to 32767, or "
            "parts of 24, 25, 29.97 or 30 frames per second"
        )
    tempo = DEFAULT_TEMPO * 1001 // 1000 if first == _DROP_FRAME else DEFAULT_TEMPO
    return Division(_FRAMES[first] * parts, tempo, 2)


def in_seconds(tracks: list[Events], division: Division) -> list[Events]:
    """Return tracks whose ticks are parts of a second in the score's ticks, with its tempo."""
    assert division.tempo is not None
    scaled = [
        _move(track, division.scale, 0, [meta for meta in track.metas if meta[1] != TEMPO])
        for track in tracks
    ]
    if scaled:
        scaled[0].metas.insert(0, (0, TEMPO, division.tempo.to_bytes(3, "big")))
    return scaled


def in_sequence(tracks: list[Events]) -> list[Events]:
    """Return the tracks of format 2, which are pieces of their own, one after the other.

    Each begins where the one before ended, at the default tempo if it sets none.
    """
    following, start = [], 0
    for track in tracks:
        tempo = (0, TEMPO, DEFAULT_TEMPO.to_bytes(3, "big"))
        following.append(_move(track, 1, start, [tempo, *track.metas] if start else track.metas))
        start += track.end
    return following


def _move(track: Events, scale: int, start: int, metas: list[tuple[int, int, bytes]]) -> Events:
    messages = track.messages.copy()
    messages[0] = messages[0] * scale + start
    moved = [(tick * scale + start, kind, content) for tick, kind, content in metas]
    return replace(track, messages=messages, metas=moved, end=track.end * scale + start)


def cut(
    tracks: list[Events], ticks_per_quarter: int, limits: Limits, damage: Damage
) -> list[Events]:
    """Return the tracks up to the longest duration, and count in `damage` what is left out."""
    last = min(LAST_TICK, _tick_at(tracks, ticks_per_quarter, limits.hours * 3600))
    kept, left_out = [], 0
    for track in tracks:
        inside = track.messages[0] <= last
        messages = track.messages if inside.all() else track.messages[:, inside]
        metas = [meta for meta in track.metas if meta[0] <= last]
        beyond = int((~inside).sum()) + len(track.metas) - len(metas)
        end = min(track.end, last)
        if beyond:  # its end is no guide to how long its last notes sound
            end = max([0, *messages[0, -1:].tolist(), *(meta[0] for meta in metas[-1:])])
        kept.append(replace(track, messages=messages, metas=metas, end=end))
        left_out += beyond
    if left_out:
        damage.add(
            f"has events after {limits.hours:g} hours, left out"
            if last < LAST_TICK
            else f"has events after tick {LAST_TICK:,}, left out",
            left_out,
        )
    return kept


def _tick_at(tracks: list[Events], ticks_per_quarter: int, seconds: float) -> int:
    """Return the tick at a time."""
    left, tick, tempo = int(seconds * 1e6) * ticks_per_quarter, 0, DEFAULT_TEMPO
    for change, next_tempo in _tempos(tracks):
        if (change - tick) * tempo > left:
            break
        left -= (change - tick) * tempo
        tick, tempo = change, next_tempo
    return tick + left // tempo


def _tempos(tracks: list[Events]) -> Iterator[tuple[int, int]]:
    """Yield tick and microseconds per quarter of each change, by tick."""
    changes = (
        (tick, int.from_bytes(content, "big"))
        for track in tracks
        for tick, kind, content in track.metas
        if kind == TEMPO and len(content) == 3 and any(content)
    )
    yield from sorted(changes, key=lambda change: change[0])
