"""The events of one track: delta times, running status, messages, and the way on after a fault.

Standard MIDI Files 1.0 (MIDI Manufacturers Association, 1996). Read more widely than written
there: running status outlasts system exclusive and meta events, numbers may have up to eight bytes.
"""

import re
import sys
from array import array
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64

from music.midi.limits import Damage
from music.midi.metas import USED

TRACK_END = b"\xff\x2f\x00"
LONGEST = 1 << 38
"""Ticks at which time stops; a tick and a message have to fit 64 bits."""
LONGEST_DELTA = (1 << 28) - 1
"""The longest wait that the standard allows; more can only be damage."""
NUMBER_BYTES = 8
IN_A_ROW = 12
"""So many events have to follow a place without a fault before reading goes on there: eight are
found by chance every few kilobytes of compressed data."""
LONG_RUN = 64
"""More events in a row make no place a better one."""
LONG_WAIT = 1 << 22
"""Ticks; a run of events that takes longer is no music."""
NEAR = 12
"""Bytes behind a fault where events may go on in the running status."""

# A delta of at most three bytes, then a message that names its status.
_EXPLICIT = re.compile(
    rb"[\x80-\xff]{0,2}[\x00-\x7f]"
    rb"(?:[\x80-\xbf\xe0-\xef][\x00-\x7f]{2}|[\xc0-\xdf][\x00-\x7f]|\xff[\x00-\x7f])"
)
_RUNNING = re.compile(rb"[\x80-\xff]*[\x00-\x7f]{2}")
"""A delta, then data without a status."""
_SYSTEM_DATA = {0xF1: 1, 0xF2: 2, 0xF3: 1}
"""Data bytes of the system messages, which belong on a wire; the others have none."""


@dataclass(frozen=True)
class Events:
    """What a track holds, by time."""

    messages: Int64[np.ndarray, "4 _"]
    """Tick, status and two data bytes of the channel messages; the second is 0 where none is."""
    metas: list[tuple[int, int, bytes]]
    """Tick, type and content of the meta events that music is made of."""
    end: int
    """Tick of the end."""
    plain: bool
    """Without fault, and without what readers of the narrower standard stumble over."""


@dataclass
class _Reading:
    """What was read, where reading stands, and the fault it met there, if any."""

    at: int = 0
    tick: int = 0
    status: int = 0
    fault: str | None = None
    after: int | None = None
    """Where the faulty event, or the end of track, ends by its kind."""
    system: int = 0
    """System messages passed over."""
    overlong: int = 0
    """Delta times over `LONGEST_DELTA`, taken as 0."""
    wide: bool = False
    """A number of over four bytes, a continued exclusive message or running status behind one."""
    packed: "array[int]" = field(default_factory=lambda: array("Q"))
    """Channel messages: tick << 24 | status << 16 | first data byte << 8 | second data byte."""
    metas: list[tuple[int, int, bytes]] = field(default_factory=list)


def read_events(track: bytes, damage: Damage) -> Events:
    """Return the events of a track up to its end, and count in `damage` what was wrong.

    After a fault, reading goes on where most events follow, behind the faulty event or a few bytes
    on; where none do, at the next place where events follow that name their status.
    """
    reading, faults = _Reading(), 0
    while True:
        _walk(track, reading)
        if reading.fault is None:
            break
        faults += 1
        damage.add(reading.fault)
        if reading.at >= len(track) or not _find_way_on(track, reading, damage):
            break
    if reading.fault is None and reading.at < len(track):
        damage.add("has bytes after the end of a track")
        faults += 1
    if reading.system:
        damage.add("has system messages, which no file may hold", reading.system)
    if reading.overlong:
        damage.add("has delta times over 28 bits, taken as 0", reading.overlong)
    packed = np.frombuffer(reading.packed, np.uint64).astype(np.int64)
    messages = np.stack([packed >> 24, packed >> 16 & 0xFF, packed >> 8 & 0xFF, packed & 0xFF])
    plain = not (faults or reading.system or reading.wide)
    return Events(messages, reading.metas, reading.tick, plain)


def reads_to_its_end(track: bytes) -> bool:
    """Tell whether bytes are the events of a track without fault."""
    reading = _Reading()
    _walk(track, reading)
    return reading.fault is None and reading.at == len(track)


def _find_way_on(track: bytes, place: _Reading, damage: Damage) -> bool:
    """Move to where reading goes on after a fault; return False where no events follow."""
    near = range(place.at + 1, min(place.at + 1 + NEAR, len(track)))
    ways = [*near] if place.after is None else [place.after, *near]
    damage.searches -= len(ways)
    if damage.searches > 0:
        runs = [_clean_run(track, at, place.status) for at in ways]
        if max(runs, default=0) >= IN_A_ROW:
            place.at = ways[runs.index(max(runs))]
            return True
    at = place.at + 1
    while damage.searches > 0 and (found := _EXPLICIT.search(track, at)):
        damage.searches -= 1
        if _clean_run(track, found.start(), 0) >= IN_A_ROW:
            place.at, place.status = found.start(), 0
            return True
        at = found.start() + 1
    return False


def _clean_run(track: bytes, at: int, status: int) -> int:
    """Return how many events follow without a fault, at most `LONG_RUN`, as many as to the end."""
    place = _Reading(at, status=status)
    _walk(track, place, LONG_RUN)
    if place.system or place.overlong or place.tick >= LONG_WAIT:
        return 0
    if place.fault is None or place.at == len(track):
        return LONG_RUN
    return len(place.packed) + len(place.metas)


def _number(track: bytes, at: int, place: _Reading) -> tuple[int, int]:
    """Return a number of variable length and the place behind it, or place 0 at a fault."""
    value = 0
    for size in range(1, NUMBER_BYTES + 1):
        byte = track[at + size - 1]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            place.wide |= size > 4
            return value, at + size
    place.fault = "has a number without end"
    return 0, 0


def _walk(track: bytes, place: _Reading, most: int = sys.maxsize) -> None:
    """Read up to `most` events, to the end of track or to a fault, and leave `place` there."""
    at, tick, status = place.at, place.tick, place.status
    start, keep = at, place.packed.append
    place.fault = place.after = None
    try:
        for _ in range(most):
            start = at
            byte = track[at]
            at += 1
            if byte < 0x80:
                tick += byte
            elif track[at] < 0x80:  # spelled out because most time goes here
                tick += (byte & 0x7F) << 7 | track[at]
                at += 1
            else:
                delta, at = _number(track, start, place)
                if not at:
                    break
                if delta > LONGEST_DELTA:
                    delta = 0
                    place.overlong += 1
                tick = min(tick + delta, LONGEST)
            byte = track[at]
            if byte >= 0xF0:
                at = _other(track, byte, at + 1, tick, place)
                if not at:
                    break
                continue
            if byte >= 0x80:
                status = byte
                at += 1
            elif not status:
                place.fault = "has data without a status"
                break
            first, second = track[at], 0
            at += 1
            if not 0xC0 <= status < 0xE0:
                second = track[at]
                at += 1
            if (first | second) >= 0x80:
                place.fault, place.after = "has a data byte over 127", at
                break
            keep(tick << 24 | status << 16 | first << 8 | second)
    except IndexError:
        whole = start == len(track)
        place.fault = "has a track without an end of track" if whole else "ends inside an event"
    ended = place.fault is None and not at
    place.at = (place.after or 0) if ended else at if place.fault is None else start
    place.tick, place.status = tick, status


def _other(track: bytes, byte: int, at: int, tick: int, place: _Reading) -> int:
    """Read a meta, exclusive or system event after its first byte; return the place behind it.

    Place 0 ends the reading: at a fault, or at the end of track with the place in `place.after`.
    """
    if byte not in (0xFF, 0xF0, 0xF7):
        place.system += 1
        return at + _SYSTEM_DATA.get(byte, 0)
    kind = byte
    if byte == 0xFF:
        kind = track[at]
        at += 1
    length, begin = _number(track, at, place)
    if not begin:
        return 0
    at = begin + length
    if at > len(track) or (byte == 0xFF and kind >= 0x80):
        place.fault = "has a message longer than its track"
        return 0
    if byte != 0xFF:
        place.wide |= byte == 0xF7 or bool(_RUNNING.match(track, at))
        return at
    if kind == 0x2F:
        place.after = at
        return 0
    if kind in USED:
        place.metas.append((tick, kind, track[begin:at]))
    return at
