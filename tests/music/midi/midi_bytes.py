"""MIDI files built byte by byte, to be odd where a test wants them to be."""

END = "00 ff 2f 00"
SCALE = " ".join(f"00 90 {pitch:02x} 50  83 60 80 {pitch:02x} 00" for pitch in range(60, 68))
"""Eight notes of 480 ticks, one after the other."""
STEPS = [(480 * step, 480, 60 + step) for step in range(8)]
"""The notes of `SCALE`: start, duration, pitch."""


def chunk(name: bytes, content: bytes, length: int | None = None) -> bytes:
    """Return a chunk, whose length may be a lie."""
    length = len(content) if length is None else length
    return name + length.to_bytes(4, "big") + content


def header(tracks: int, form: int = 1, division: int = 480, extra: bytes = b"") -> bytes:
    """Return a header chunk."""
    numbers = b"".join(number.to_bytes(2, "big") for number in (form, tracks, division))
    return chunk(b"MThd", numbers + extra)


def track(events: str, end: str = END) -> bytes:
    """Return a track chunk of events written as hexadecimal bytes."""
    return chunk(b"MTrk", bytes.fromhex(events + end))


def file(*tracks: str, form: int = 1, division: int = 480) -> bytes:
    """Return a whole file of tracks written as hexadecimal bytes."""
    return header(len(tracks), form, division) + b"".join(map(track, tracks))
