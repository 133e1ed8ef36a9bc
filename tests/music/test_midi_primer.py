import csv
import re
import time
import warnings
from pathlib import Path

import numpy as np
import pretty_midi
import pytest
from chorale_strategy import chorales
from hypothesis import given

from longctx.data.base import SPLITS
from music.chorale import REST, Chorale
from music.chorales import load_chorales
from music.midi.primer import MOST_BYTES, MOST_STEPS, read_chorale
from music.render import midi_bytes, to_midi

SIXTEENTH = 0.125  # seconds at pretty_midi's default of 120 quarters per minute


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("midi") / "piece.mid"


def write(path: Path, *tracks: list[tuple[float, float, int]], names: tuple[str, ...] = ()) -> Path:
    """Write tracks of (start, end, pitch), times in sixteenths."""
    midi = pretty_midi.PrettyMIDI(resolution=480)
    for number, notes in enumerate(tracks):
        track = pretty_midi.Instrument(0, name=names[number] if names else "")
        track.notes = [
            pretty_midi.Note(80, pitch, start * SIXTEENTH, end * SIXTEENTH)
            for start, end, pitch in notes
        ]
        midi.instruments.append(track)
    midi.write(str(path))
    return path


def single_track(division: int, events: bytes) -> bytes:
    events += bytes.fromhex("00 ff 2f 00")
    header = b"MThd" + bytes([0, 0, 0, 6, 0, 0, 0, 1]) + division.to_bytes(2, "big")
    return header + b"MTrk" + len(events).to_bytes(4, "big") + events


@pytest.mark.parametrize("split", SPLITS)
def test_embedded_chorales_survive_a_midi_file(split, tmp_path: Path):
    for chorale in load_chorales(split):
        path = tmp_path / f"{chorale.name}.mid"
        path.write_bytes(midi_bytes(to_midi(chorale)))
        back = read_chorale(path)
        np.testing.assert_array_equal(back.pitch, chorale.pitch, err_msg=chorale.name)
        np.testing.assert_array_equal(back.onset, chorale.onset, err_msg=chorale.name)
        facts = (chorale.meter, chorale.pickup, chorale.name)
        assert (back.meter, back.pickup, back.name) == facts


@given(chorale=chorales(min_steps=1))
def test_any_chorale_survives_a_midi_file_up_to_its_last_note(file: Path, chorale: Chorale):
    sounding = np.flatnonzero((chorale.pitch != REST).any(axis=1))
    file.write_bytes(midi_bytes(to_midi(chorale)))
    if not sounding.size:
        with pytest.raises(ValueError, match="no notes"):
            read_chorale(file)
        return
    back, steps = read_chorale(file), sounding[-1] + 1
    np.testing.assert_array_equal(back.pitch, chorale.pitch[:steps])
    np.testing.assert_array_equal(back.onset, chorale.onset[:steps])


def test_four_unnamed_tracks_are_voices_by_mean_pitch(file: Path):
    bass, tenor = [(0, 4, 48), (4, 8, 70)], [(0, 8, 60)]
    alto, soprano = [(0, 4, 65), (4, 8, 65)], [(0, 8, 72)]
    chorale = read_chorale(write(file, bass, soprano, tenor, alto))
    assert chorale.pitch[[0, 4]].tolist() == [[72, 65, 60, 48], [72, 65, 60, 70]]
    assert np.argwhere(chorale.onset[1:]).tolist() == [[3, 1], [3, 3]]


def test_four_channels_of_one_track_are_voices(tmp_path: Path):
    on = bytes.fromhex("00 90 48 50  00 91 43 50  00 92 40 50  00 93 30 50")
    off = bytes.fromhex("83 60 80 48 00  00 81 43 00  00 82 40 00  00 83 30 00")
    path = tmp_path / "a.mid"
    path.write_bytes(single_track(480, on + off))
    assert read_chorale(path).pitch.tolist() == [[72, 67, 64, 48]] * 4


def test_names_win_over_pitch_and_may_be_silent(file: Path):
    names = ("BASS", "Soprano", "tenor ", "alto")
    chorale = read_chorale(write(file, [(0, 4, 72)], [(0, 4, 48)], [], [(2, 4, 60)], names=names))
    assert chorale.pitch[[0, 3]].tolist() == [[48, REST, REST, 72], [48, 60, REST, 72]]


def test_a_voice_sounds_its_newest_note_on_one_step_its_highest(file: Path):
    soprano = [(0, 8, 72), (2, 4, 74), (6, 8, 71), (6, 7, 76)]
    others = [(0, 8, 65)], [(0, 8, 60)], [(0, 8, 48)]
    line = read_chorale(write(file, soprano, *others)).pitch[:, 0]
    assert line.tolist() == [72, 72, 74, 74, REST, REST, 76, REST]


def test_other_music_is_read_from_the_top_and_the_bottom(file: Path):
    chords = [[60], [60, 72], [60, 65, 72], [60, 65, 69, 72], [48, 60, 65, 69, 72, 76]]
    piano = [(step, step + 1, pitch) for step, chord in enumerate(chords) for pitch in chord]
    chorale = read_chorale(
        write(file, [n for n in piano if n[2] > 62], [n for n in piano if n[2] < 62])
    )
    assert chorale.pitch.tolist() == [
        [60, REST, REST, REST],
        [72, REST, REST, 60],
        [72, 65, REST, 60],
        [72, 69, 65, 60],
        [76, 72, 69, 48],
    ]


def test_in_other_music_repetitions_and_holds_are_told_apart(file: Path):
    chorale = read_chorale(write(file, [(0, 4, 72), (4, 8, 72), (0, 8, 60)]))
    assert chorale.pitch[:, [0, 3]].tolist() == [[72, 60]] * 8
    assert np.argwhere(chorale.onset).tolist() == [[0, 0], [0, 3], [4, 0]]


def test_notes_move_to_the_nearest_step_and_last_at_least_one(file: Path):
    notes = [(0.4, 1.6, 60), (2.5, 2.6, 62), (3.6, 5.4, 64)]
    chorale = read_chorale(write(file, notes))
    assert chorale.pitch[:, 0].tolist() == [60, 60, REST, 62, 64]


def test_drums_are_no_voice(file: Path):
    midi = pretty_midi.PrettyMIDI(resolution=480)
    for drum, pitch in ((True, 35), (False, 60)):
        track = pretty_midi.Instrument(0, is_drum=drum)
        track.notes = [pretty_midi.Note(80, pitch, 0, SIXTEENTH)]
        midi.instruments.append(track)
    midi.write(str(file))
    assert read_chorale(file).pitch.tolist() == [[60, REST, REST, REST]]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"A renamed text file.", "begins with b'A re'; wanted a MIDI file"),
        (b"MThd\x00\x00\x00\x06\x00", "ends after 9 bytes; a MIDI header has 14"),
        (single_track(0, b""), "has the time division 0x0000"),
        (single_track(0xE528, b""), "has the time division 0xe528; wanted ticks per quarter"),
        (single_track(480, b""), "has no notes"),
        (single_track(480, b"\x00\x99\x24\x50\x83\x60\x89\x24\x00"), "has no notes besides drums"),
        (single_track(480, b"\x00\x90\x3c\x50")[:-6], "has no notes; has a track whose length"),
        (b"MThd" + b"\x00" * MOST_BYTES, f"has {MOST_BYTES + 4:,} bytes; wanted at most"),
    ],
)
def test_what_is_no_music_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, complaint: str
):
    path = tmp_path / "a.mid"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        read_chorale(path)


def test_a_damaged_file_gives_what_can_be_saved_and_a_warning(tmp_path: Path):
    path = tmp_path / "a.mid"
    notes = bytes.fromhex("00 90 48 50  83 60 80 48 00  00 90 4a 50")
    path.write_bytes(single_track(480, notes)[:-4])
    with pytest.warns(UserWarning, match=r"a\.mid was damaged: it .* length is wrong; it .* end"):
        chorale = read_chorale(path)
    assert chorale.pitch[:, 0].tolist() == [72] * 4 + [74]


def test_a_file_that_lasts_too_long_is_refused(file: Path):
    assert read_chorale(write(file, [(MOST_STEPS - 1, MOST_STEPS, 60)])).steps == MOST_STEPS
    write(file, [(0, 1, 60), (MOST_STEPS, MOST_STEPS + 1, 60)])
    with pytest.raises(
        ValueError, match="has notes from sixteenth 0 to 16,385; wanted 0 to at most"
    ):
        read_chorale(file)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path):
    for path in (tmp_path / "nowhere.mid", tmp_path):
        with pytest.raises(ValueError, match="is not a file; wanted a MIDI file"):
            read_chorale(path)


def test_odd_files_give_a_chorale_or_a_reason(shared_data):
    folder = shared_data("nasty_midi")
    with (folder / "index.csv").open(newline="") as index:
        names = [row["file"] for row in csv.DictReader(index)]
    assert len(names) == 88
    read, refused = {}, {}
    for name in names:
        start = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read[name] = read_chorale(folder / name)
        except ValueError as reason:
            refused[name] = str(reason)
        assert time.monotonic() - start < 5, f"{name} took too long"
    assert all(name in reason for name, reason in refused.items())
    assert len(read) > 60, "there are notes in 73 of them, drums and hours of silence in three"
    assert read["n14_200k_notes.mid"].steps > 10_000
    assert "0 to 316,808" in refused["n09_10h_long.mid"]
