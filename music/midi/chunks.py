"""The container of a MIDI file: header and track chunks, in RIFF or between junk.

Standard MIDI Files 1.0 (MIDI Manufacturers Association, 1996): chunks of a four-letter name, a
length of four bytes and so many bytes; `MThd` holds format, number of tracks and division; chunks
of other names than `MTrk` are to be passed over.
"""

from dataclasses import dataclass

from music.midi.events import TRACK_END, reads_to_its_end
from music.midi.limits import Damage, Limits, Unreadable

HEADER, TRACK = b"MThd", b"MTrk"


@dataclass(frozen=True)
class Chunks:
    """Format (0, 1 or 2), division (16 bits) and the events of each track."""

    format: int
    division: int
    tracks: list[bytes]
    plain: bool
    """Header and tracks are all there is, and the header tells their number."""


def split_chunks(content: bytes, limits: Limits, damage: Damage) -> Chunks:
    """Return the tracks of a file, wherever they lie, and count in `damage` what was wrong.

    A track's length is believed where an end of track lies before its end or a chunk, or the end
    of the file, behind it. Else the track reaches to the next `MTrk`. Where tracks are missing, a
    chunk of another name is taken for one if it reads as one.

    Raises:
        Unreadable: there is no header, or there are more tracks than the limits allow.
    """
    body = _riff_data(content)
    start = body.find(HEADER)
    if not content:
        raise Unreadable("is empty; wanted a MIDI file")
    if start < 0:
        raise Unreadable(
            f"begins with {content[:4]!r}; wanted a MIDI file, which begins with {HEADER!r}"
        )
    if len(body) < start + 14:
        raise Unreadable(f"ends after {len(content)} bytes; a MIDI header has 14")
    length = int.from_bytes(body[start + 4 : start + 8], "big")
    form, declared, division = (
        int.from_bytes(body[start + place : start + place + 2], "big") for place in (8, 10, 12)
    )
    place = start + 8 + length
    if length != 6 and (length < 6 or not (place == len(body) or _is_chunk(body, place))):
        damage.add("has a header whose length is wrong")
        place = start + 14
    if form > 2:
        damage.add(f"has format {form}, which does not exist and is read as 1")
        form = 1
    tracks, others, tidy = _tracks(body, place, limits, damage)
    for chunk in others[: max(0, declared - len(tracks))]:
        if reads_to_its_end(chunk[8:]):
            damage.add(f"has a track under another name than {TRACK!r}")
            tracks.append(chunk[8:])
    if len(tracks) > limits.tracks:
        raise Unreadable(f"has more than {limits.tracks:,} tracks")
    if declared > len(tracks) and not tidy:
        damage.add("lacks a track and has bytes that are no chunk")
    plain = tidy and not others and start == 0 and length == 6 and declared == len(tracks)
    return Chunks(form, division, tracks, plain and len(body) == len(content))


def _riff_data(content: bytes) -> bytes:
    """Return what the data chunk of a RIFF file holds, or all of another file."""
    if content[:4] != b"RIFF" or content[8:12] != b"RMID":
        return content
    place = 12
    while place + 8 <= len(content):
        length = int.from_bytes(content[place + 4 : place + 8], "little")
        if content[place : place + 4] == b"data":
            return content[place + 8 : place + 8 + length]
        place += 8 + length + length % 2
    return content


def _tracks(
    body: bytes, place: int, limits: Limits, damage: Damage
) -> tuple[list[bytes], list[bytes], bool]:
    """Return the tracks, the other chunks whole, and whether chunks are all that follows."""
    tracks: list[bytes] = []
    others: list[bytes] = []
    tidy = True
    while place < len(body):
        name = body[place : place + 4]
        end = place + 8 + int.from_bytes(body[place + 4 : place + 8], "big")
        if name == HEADER:
            damage.add("has a second header, where reading ends")
            break
        if name == TRACK and place + 8 <= len(body):
            end = _track_end(body, place + 8, end, damage)
            tracks.append(body[place + 8 : end])
            if len(tracks) > limits.tracks:
                raise Unreadable(f"has more than {limits.tracks:,} tracks")
        elif _is_chunk(body, place):
            others.append(body[place:end])
        else:  # junk up to the next track
            tidy = False
            end = body.find(TRACK, place + 1)
            if end < 0:
                break
            damage.add("has bytes between its chunks")
        place = end
    return tracks, others, tidy


def _is_chunk(body: bytes, place: int) -> bool:
    """Tell whether a name and a length that fits begin here."""
    name, length = body[place : place + 4], body[place + 4 : place + 8]
    return (
        len(length) == 4
        and all(32 <= letter < 127 for letter in name)
        and (name in (TRACK, HEADER) or place + 8 + int.from_bytes(length, "big") <= len(body))
    )


def _track_end(body: bytes, start: int, end: int, damage: Damage) -> int:
    """Return where a track really ends, given where its length says it does."""
    following = body.find(TRACK, start)
    swallowed = 0 <= following < end and body.startswith(TRACK_END, following - len(TRACK_END))
    if end <= len(body) and not swallowed:
        ends = end - start >= len(TRACK_END) and body.startswith(TRACK_END, end - len(TRACK_END))
        if ends or end == len(body) or _is_chunk(body, end):
            return end
    damage.add("has a track whose length is wrong")
    return len(body) if following < 0 else following
