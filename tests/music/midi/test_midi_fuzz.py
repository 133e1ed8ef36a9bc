"""Files with random damage give music or a reason, in time, and never an exception."""

import random
import time

import pytest
from midi_bytes import SCALE, chunk, file, header, track

from music.midi import Read, read_midi

RUNNING = "00 90 00 00" + "".join(f"10 {n:02x} 40 10 {n:02x} 00" for n in range(40, 100))
RICH = (
    "00 ff 03 05 50 69 61 6e 6f 00 ff 51 03 07 a1 20 00 ff 58 04 03 02 18 08 00 ff 59 02 fd 00"
    "00 f0 05 7e 7f 09 01 f7 00 c0 05 00 b0 40 7f" + SCALE + "00 e0 00 40 00 ff 05 02 6c 61"
    "00 b0 40 00 00 c0 28" + SCALE + "00 ff 06 01 41 00 b0 7b 00"
)
BASES = [
    file(RICH),
    file("00 ff 51 03 06 1a 80", RICH, RUNNING),
    file(RUNNING, SCALE, form=2),
    file(RICH, RUNNING, division=0xE728),
    header(2, extra=b"\0\0") + chunk(b"XFIH", b"1234") + track(RICH) + track(RUNNING) + b"\r\n",
]


def damage(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with one to four random changes."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(changed) + 1)
        size = draw.choice([1, 1, 2, 4, 16, 64])
        kind = draw.choice(["cut", "flip", "set", "insert", "delete", "repeat", "lie"])
        if kind == "cut":
            del changed[at:]
        elif kind == "flip" and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == "set":
            changed[at : at + size] = draw.randbytes(size)
        elif kind == "insert":
            changed[at:at] = draw.randbytes(size)
        elif kind == "delete":
            del changed[at : at + size]
        elif kind == "repeat":
            changed[at:at] = changed[draw.randrange(len(changed) + 1) :][: 8 * size]
        elif kind == "lie":  # another length for some chunk
            place = changed.rfind(b"MTrk", 0, at)
            if place >= 0:
                changed[place + 4 : place + 8] = draw.choice([draw.randbytes(4), b"\0\0\0\7"])
    return bytes(changed)


def check(read: Read) -> None:
    assert read.status in ("ok", "repaired", "skipped")
    assert (read.score is None) == (read.status == "skipped")
    assert bool(read.reasons) == (read.status != "ok")
    assert all(len(reason) < 200 for reason in read.reasons)
    if read.score is None:
        return
    assert read.score.ticks_per_quarter > 0
    assert read.score.note_num() > 0
    for played in read.score.tracks:
        notes = played.notes.numpy()
        assert (notes["time"] >= 0).all()
        assert (notes["duration"] >= 0).all()
        assert (notes["time"].astype(int) + notes["duration"] < 2**31).all()
        assert (notes["pitch"] >= 0).all()
        assert (notes["velocity"] > 0).all()
        assert all(pedal.duration >= 0 for pedal in played.pedals)
        assert isinstance(played.name, str)
    assert all(tempo.mspq > 0 for tempo in read.score.tempos)
    assert all(meter.denominator > 0 for meter in read.score.time_signatures)
    read.score.to("second")


def run(seeds: range) -> dict[str, int]:
    counts = {"ok": 0, "repaired": 0, "skipped": 0}
    for seed in seeds:
        draw = random.Random(seed)
        content = damage(draw.choice(BASES), draw)
        start = time.process_time()
        read = read_midi(content)
        assert time.process_time() - start < 2, seed
        check(read)
        counts[read.status] += 1
    return counts


def test_the_files_to_damage_are_ok():
    for content in BASES:
        read = read_midi(content)
        assert (read.status, read.reasons) == ("ok", ())
        check(read)


def test_damaged_files_give_music_or_a_reason():
    counts = run(range(1500))
    assert min(counts.values()) > 50, counts


@pytest.mark.slow
def test_twenty_thousand_damaged_files_give_music_or_a_reason():
    counts = run(range(10_000, 30_000))
    print(counts)
    assert min(counts.values()) > 500, counts


def test_random_bytes_are_no_music():
    draw = random.Random(0)
    for size in (1, 13, 14, 100, 10_000):
        for start in (b"", b"MThd", header(1), header(1) + chunk(b"MTrk", b"", size)):
            check(read_midi(start + draw.randbytes(size)))
