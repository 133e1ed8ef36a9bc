"""Odd files built here: legal ones give all their music, damaged ones what can be saved."""

import csv
import os
import time
from pathlib import Path

import pretty_midi
import pytest
from midi_bytes import END, SCALE, STEPS, chunk, file, header, track
from symusic.core import ScoreSecond, ScoreTick

from music.midi import Limits, Read, read_midi
from music.midi.read import DEFAULT_LIMITS

TABLE = Path(__file__).parent / "nasty_expected.csv"
ONE = "00 90 3c 50  83 60 80 3c 00"


def notes(read: Read) -> list[tuple[int, int, int]]:
    """Return start, duration and pitch of all notes, by start."""
    assert read.score is not None, read.reasons
    return sorted((n.time, n.duration, n.pitch) for t in read.score.tracks for n in t.notes)


def ok(content: bytes) -> list[tuple[int, int, int]]:
    read = read_midi(content)
    assert (read.status, read.reasons) == ("ok", ())
    return notes(read)


def repaired(content: bytes, *reasons: str) -> list[tuple[int, int, int]]:
    read = read_midi(content)
    assert read.status == "repaired"
    assert len(read.reasons) == len(reasons), read.reasons
    for reason, wanted in zip(read.reasons, reasons, strict=True):
        assert wanted in reason
    return notes(read)


def skipped(content: bytes, limits: Limits = DEFAULT_LIMITS) -> str:
    read = read_midi(content, limits)
    assert read.status == "skipped"
    assert read.score is None
    return "; ".join(read.reasons)


def test_an_ordinary_file_is_read_as_symusic_reads_it():
    content = file("00 ff 51 03 06 1a 80 00 ff 58 04 03 02 18 08", SCALE)
    assert ok(content) == STEPS
    assert read_midi(content).score == ScoreTick.from_midi(content)


def test_paths_and_bytes_give_the_same(tmp_path: Path):
    path = tmp_path / "a.mid"
    path.write_bytes(file(SCALE))
    assert notes(read_midi(path)) == notes(read_midi(str(path))) == STEPS


def riff(content: bytes) -> bytes:
    info = b"LIST" + (5).to_bytes(4, "little") + b"INFO1\0"
    data = info + b"data" + len(content).to_bytes(4, "little") + content
    data += b"\0" * (len(content) % 2) + b"DISP" + (4).to_bytes(4, "little") + b"\1\0\0\0"
    return b"RIFF" + (len(data) + 4).to_bytes(4, "little") + b"RMID" + data


PLAIN = file(SCALE)
LEGAL = {
    "an unknown chunk first": header(1) + chunk(b"XFIH", b"\1\2\3") + track(SCALE),
    "an unknown chunk last": PLAIN + chunk(b"XFKM", b"MTrk and no track"),
    "an unknown chunk that reads as a track": PLAIN + chunk(b"Note", bytes.fromhex(ONE + END)),
    "a header of ten bytes": header(1, extra=b"\1\2\3\4") + track(SCALE),
    "RIFF": riff(PLAIN),
    "RIFF of even length": riff(PLAIN + chunk(b"Zero", b"\0")),
    "RIFF whose lengths are wrong": b"RIFF\0\0\0\0RMIDdata\1\2\3\4" + PLAIN,
    "junk before the header": b"\0" * 128 + PLAIN,
    "text before the header": b"HTTP/1.0 200 OK\r\n\r\n" + PLAIN,
    "junk behind the last track": PLAIN + b"\r\n\x1a",
    "zeros behind the last track": PLAIN + b"\0" * 500,
    "more tracks than declared": header(1) + track("") + track(SCALE),
    "fewer tracks than declared": header(9) + track(SCALE),
    "no tracks declared": header(0) + track(SCALE),
    "format 0 with two tracks": file("", SCALE, form=0),
    "format 2 with one track": file(SCALE, form=2),
    "running status": file(
        "00 90 3c 50 83 60 3c 00"
        + "".join(f"00 {pitch:02x} 50 83 60 {pitch:02x} 00" for pitch in range(61, 68))
    ),
    "five-byte deltas": file(SCALE.replace("83 60", "80 80 80 83 60")),
    "eight-byte deltas": file(SCALE.replace("83 60", "80 80 80 80 80 80 83 60")),
    "a five-byte length": file("00 ff 01 80 80 80 80 01 61" + SCALE),
    "a sysex without its end": file("00 f0 03 01 02 03" + SCALE),
    "a sysex in two packets": file("00 f0 02 01 02  00 f7 02 03 f7" + SCALE),
    "meta events of unknown type": file("00 ff 60 02 01 02  00 ff 7f 00" + SCALE),
    "aftertouch and programs": file("00 a0 3c 10  00 d0 10  00 c0 05" + SCALE),
    "note-offs of nothing": file("00 80 3c 00  00 90 3d 00" + SCALE),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal_but_unusual_files_give_all_their_music(name: str):
    assert ok(LEGAL[name]) == STEPS


@pytest.mark.parametrize(
    "event", ["f0 02 01 f7", "f0 01 f7", "f0 00", "f7 03 01 02 03", "f7 01 90", "ff 01 01 61"]
)
def test_running_status_outlasts_exclusive_and_meta_events(event: str):
    content = file(f"00 90 3c 50  10 {event}  10 40 50  10 3c 00  10 40 00")
    assert ok(content) == [(0, 48, 60), (32, 32, 64)]


@pytest.mark.parametrize(
    ("division", "seconds"),
    [(0xE728, 480 / 1000), (0xE804, 480 / 96), (0xE250, 480 / 2400), (0xE350, 480.48 / 2400)],
)
def test_smpte_ticks_are_parts_of_a_second_whatever_the_tempo(division: int, seconds: float):
    read = read_midi(file("00 ff 51 03 01 00 00" + SCALE, division=division))
    assert read.status == "ok"
    assert read.score is not None
    score = read.score.to("second")
    assert isinstance(score, ScoreSecond)
    found = [n for t in score.tracks for n in t.notes]
    assert [n.pitch for n in found] == list(range(60, 68))
    for step, note in enumerate(found):
        assert note.time == pytest.approx(step * seconds, rel=1e-6)
        assert note.duration == pytest.approx(seconds, rel=1e-5)


@pytest.mark.parametrize("division", [0, 0x8000, 0xFFFF, 0xE700, 0xE528])
def test_a_division_that_means_nothing_is_a_reason(division: int):
    assert f"has the time division {division:#06x}" in skipped(file(SCALE, division=division))


def test_tracks_of_format_2_follow_one_another_each_with_its_tempo():
    slow = "00 ff 51 03 0f 42 40"
    content = file(slow + ONE + "83 60 ff 01 00", ONE, form=2)
    assert ok(content) == [(0, 480, 60), (960, 480, 60)]
    score = read_midi(content).score
    assert score is not None
    assert [(t.time, t.mspq) for t in score.tempos] == [(0, 1_000_000), (960, 500_000)]


def test_of_one_pitch_the_note_that_began_first_ends_first():
    assert ok(file("00 90 3c 50  10 90 3c 50  10 80 3c 00  20 80 3c 00")) == [
        (0, 32, 60),
        (16, 48, 60),
    ]


@pytest.mark.parametrize("control", [120, 123, 124, 125, 126, 127])
def test_all_notes_off_ends_the_notes_of_its_channel(control: int):
    events = f"00 90 3c 50  00 91 40 50  10 b0 {control:02x} 00  10 80 3c 00  00 81 40 00"
    assert ok(file(events)) == [(0, 16, 60), (0, 32, 64)]


def test_notes_that_never_end_end_with_their_track():
    reason = "has notes that never end"
    content = file("00 90 3c 50  00 90 40 50  10 90 43 50  10 80 43 00  40 ff 01 00")
    assert repaired(content, reason) == [(0, 96, 60), (0, 96, 64), (16, 16, 67)]


def test_a_missing_note_off_costs_only_its_note():
    lost = "00 90 3c 50 60 90 3c 50 40 80 3c 00 20 90 3c 50 40 80 3c 00 20 90 3c 50 40 80 3c 00"
    assert repaired(file(lost), "never end") == [
        *[(0, 96, 60), (96, 64, 60), (192, 64, 60), (288, 64, 60)]
    ]


def test_ticks_past_31_bits_do_not_wrap():
    wait = " ff ff ff 7f b0 07 00" * 9
    read = read_midi(file(SCALE + wait + "00 90 48 50 10 80 48 00"))
    assert read.status == "repaired"
    assert "after 24 hours, left out" in read.reasons[0]
    assert notes(read) == STEPS
    swift = "00 ff 51 03 00 00 01"
    read = read_midi(file(swift + SCALE + wait + "00 90 48 50 10 80 48 00"))
    assert "after tick 2,147,483,647, left out" in read.reasons[0]
    assert notes(read) == STEPS


def test_a_note_that_a_cut_leaves_without_end_ends_where_the_track_is_cut():
    content = file("00 90 3c 50  83 60 b0 07 00  ff ff ff 7f 80 3c 00")
    assert repaired(content, "after 24 hours", "never end") == [(0, 480, 60)]


def test_a_pedal_that_is_held_to_the_end_ends_there_and_is_not_lent_to_the_next_track():
    held = ONE + "00 b0 40 7f 20 ff 01 00"
    following = "00 91 40 50 60 b1 40 7f 10 b1 40 00 00 81 40 00"
    score = read_midi(file(held, following)).score
    assert score is not None
    pedals = [[(p.time, p.duration) for p in t.pedals] for t in score.tracks]
    assert pedals == [[(480, 32)], [(96, 16)]]


def test_a_pedal_in_a_track_of_its_own_is_that_of_its_channel():
    score = read_midi(file("00 b0 40 7f 60 b0 40 00", ONE, ONE.replace("90", "91", 1))).score
    assert score is not None
    assert [[(p.time, p.duration) for p in t.pedals] for t in score.tracks] == [[(0, 96)], []]


def test_texts_are_utf8_or_else_latin1():
    for content, name in (("c3 a9", "é"), ("e9 65", "ée")):
        score = read_midi(file(f"00 ff 03 02 {content} 00 ff 05 02 {content}" + SCALE)).score
        assert score is not None
        assert [t.name for t in score.tracks] == [name, name]
        assert [w.text for w in score.tracks[1].lyrics] == [name]


SCALE_BYTES = bytes.fromhex(SCALE)
DAMAGED = {
    "a track's length is too long": (
        header(2) + chunk(b"MTrk", bytes.fromhex(SCALE + END), 99) + track(""),
        "length is wrong",
    ),
    "a track's length is huge": (
        header(1) + chunk(b"MTrk", bytes.fromhex(SCALE + END), 2**32 - 1),
        "length is wrong",
    ),
    "a track's length takes in the next track": (
        header(2) + chunk(b"MTrk", bytes.fromhex(END), 4 + 8 + 76) + track(SCALE),
        "length is wrong",
    ),
    "a track's length is too short": (
        header(2) + chunk(b"MTrk", bytes.fromhex(SCALE + END), 20) + track(""),
        "length is wrong",
    ),
    "the header's length is wrong": (PLAIN.replace(b"\0\0\0\6", b"\7\0\0\6", 1), "header"),
    "a track has another name": (header(1) + chunk(b"MTrx", bytes.fromhex(SCALE + END)), "name"),
    "junk between tracks": (header(2) + track("") + b"\xff" * 99 + track(SCALE), "between"),
    "a format that does not exist": (file(SCALE, form=7), "format 7"),
    "no end of track": (header(1) + chunk(b"MTrk", SCALE_BYTES), "without an end of track"),
    "an end of track too early": (file(SCALE + END + ONE), "after the end"),
    "data before any status": (file("00 3c 50" + SCALE), "without a status"),
    "a control over 127": (file(f"00 b0 07 a8 {SCALE}"), "over 127"),
    "a program over 127": (file(f"00 c0 d0 {SCALE}"), "over 127"),
    "a sysex past the end": (file("00 f0 ff ff 7f 01 02" + SCALE), "longer than its track"),
    "a text past the end": (file("00 ff 01 ff ff 7f 61 62" + SCALE), "longer than its track"),
    "a delta over 28 bits": (file("90 80 80 80 00" + SCALE[3:]), "over 28 bits"),
    "a clock": (file("00 f8" + SCALE), "system messages"),
    "a tempo of zero": (file("00 ff 51 03 00 00 00" + SCALE), "tempo"),
    "a tempo of two bytes": (file("00 ff 51 02 07 a1" + SCALE), "tempo"),
    "a meter over nothing": (file("00 ff 58 04 04 21 18 08" + SCALE), "time signature"),
    "a meter of no beats": (file("00 ff 58 04 00 02 18 08" + SCALE), "time signature"),
    "a key with nine flats": (file("00 ff 59 02 f7 00" + SCALE), "key signature"),
    "a second file behind": (PLAIN + PLAIN, "second header"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_give_what_can_be_saved_and_are_marked(name: str):
    content, reason = DAMAGED[name]
    assert repaired(content, reason) == STEPS


def test_behind_an_endless_number_notes_keep_their_lengths():
    found = repaired(file("ff" * 20 + SCALE), "number without end")
    assert [n[1:] for n in found] == [n[1:] for n in STEPS]


def test_a_file_cut_anywhere_gives_the_notes_before_the_cut():
    content = file(SCALE)
    for length in range(len(content) - 1, 21, -1):
        whole = (length - 22) // 9
        begun = (length - 22) % 9 >= 4
        read = read_midi(content[:length])
        found = [] if read.score is None else notes(read)
        assert [n[2] for n in found] == [60 + step for step in range(min(8, whole + begun))]
        assert read.status == ("repaired" if found else "skipped")


def test_random_bytes_in_the_middle_cost_only_the_notes_there():
    scale = " ".join([SCALE] * 20)
    events = bytearray.fromhex(scale)
    events[700:760] = bytes((37 * i * i + 11) % 256 for i in range(60))
    content = header(1) + chunk(b"MTrk", bytes(events) + bytes.fromhex(END))
    read = read_midi(content)
    assert read.status == "repaired"
    found = notes(read)
    assert [n[2] for n in found[:77]] == [60 + i % 8 for i in range(77)]
    assert [n[2] for n in found[-74:]] == [60 + i % 8 for i in range(86, 160)]
    assert len(found) <= 160


def test_limits_give_reasons():
    assert "has 98 bytes; wanted at most 97" in skipped(PLAIN, Limits(bytes=97))
    assert "has more than 1 tracks" in skipped(file("", SCALE), Limits(tracks=1))
    assert "has more than 7 notes" in skipped(PLAIN, Limits(notes=7))
    assert "takes more than 1e-09 seconds" in skipped(PLAIN, Limits(seconds=1e-9))
    assert len(notes(read_midi(PLAIN, Limits(hours=1 / 3600)))) == 3
    with pytest.raises(ValueError, match="notes is 0; wanted a limit above zero"):
        Limits(notes=0)


def test_paths_that_are_no_files_are_reasons(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "nowhere.mid", tmp_path, tmp_path / "pipe"):
        assert read_midi(path) == Read("skipped", ("is not a file; wanted a MIDI file",))


HEAVY = {
    "controls that end notes": ("00 90 3c 01" * 64 + "00 b0 7b 00" * 150_000),
    "empty texts": "00 ff 06 00" * 200_000,
    "tempos": "00 ff 51 03 01 02 03" * 100_000,
    "faults": "00 b0 80 80" * 200_000,
    "numbers": "ff" * 1_000_000,
    "statuses without data": "00 90 90 00" * 200_000,
    "programs": "00 c0 01 00 90 3c 01 00 c0 02 00 b0 01 01" * 50_000,
}


@pytest.mark.parametrize("name", HEAVY)
def test_no_large_file_takes_long(name: str):
    content = file(HEAVY[name] + ONE, "00 b0 40 7f" * 1000, *[ONE] * 500)
    start = time.process_time()
    read_midi(content)
    assert time.process_time() - start < 10


def test_many_chunks_do_not_take_long():
    for content in (
        header(65535) + b"MTrk\xff\xff\xff\xff" * 100_000,
        header(65535) + b"XXXX\0\0\0\0" * 100_000,
        header(65535) + b"XXXX\0\0\0\4\0\xff\x2f\0" * 100_000,
        header(1) + b"junk" * 300_000,
        header(1) + b"\xff\x2f\x00" * 300_000,
    ):
        start = time.process_time()
        skipped(content)
        assert time.process_time() - start < 10


def test_the_odd_files(shared_data):
    folder = shared_data("nasty_midi")
    with TABLE.open(newline="") as table:
        expected = list(csv.DictReader(table))
    assert sorted(row["file"] for row in expected) == sorted(p.name for p in folder.glob("*.mid"))
    wrong = []
    for row in expected:
        read = read_midi(folder / row["file"])
        count = 0 if read.score is None else read.score.note_num()
        reasons = "; ".join(read.reasons)
        if (read.status, count) != (row["status"], int(row["notes"])) or (
            row["reason"] not in reasons or bool(reasons) != bool(row["reason"])
        ):
            wrong.append((row, read.status, count, reasons))
    assert not wrong


@pytest.mark.parametrize("name", ["pop909/midi", "asap/midi", "maestro"])
def test_ordinary_files_are_ok_and_have_the_notes_others_find(shared_data, name: str):
    files = sorted(p for p in shared_data(name).iterdir() if p.suffix in (".mid", ".midi"))
    assert files
    for number, path in enumerate(files):
        read = read_midi(path)
        assert read.status == "ok", (path, read.reasons)
        assert read.score is not None
        assert read.score.note_num() == ScoreTick.from_midi(path.read_bytes()).note_num()
        if number % 10 == 0:  # slow
            midi = pretty_midi.PrettyMIDI(str(path))
            count = sum(len(track.notes) for track in midi.instruments)
            # It leaves out notes without length.
            assert sum(n.duration > 0 for t in read.score.tracks for n in t.notes) == count, path
