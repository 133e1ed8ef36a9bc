"""`python -m scripts.generate`: equal seeds give equal files, and a primer is continued."""

from pathlib import Path

import numpy as np
import pretty_midi
import pytest

from music.chorales import load_chorales
from music.midi.primer import read_chorale
from music.render import midi_bytes, to_midi
from scripts.generate import main

LENGTH = 48
STEPS = 12
"""Of the primer."""


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def compose(call, run_dir: Path, out: Path, *arguments: object):
    return call(main, run_dir, "--out", out, "--length", LENGTH, *arguments)


@pytest.fixture(scope="module")
def primer(tmp_path_factory) -> Path:
    """The first steps of a chorale, as a MIDI file."""
    path = tmp_path_factory.mktemp("primer") / "primer.mid"
    midi = to_midi(load_chorales("valid")[0])
    end = STEPS * 60 / 90 / 4
    for track in midi.instruments:
        track.notes = [note for note in track.notes if note.start < end - 1e-6]
        for note in track.notes:
            note.end = min(note.end, end)
    path.write_bytes(midi_bytes(midi))
    assert read_chorale(path).steps == STEPS
    return path


def test_equal_seeds_give_equal_files_and_other_seeds_others(call, trained_run, tmp_path):
    first, again, other = (tmp_path / name for name in "abc")
    for out, seed in ((first, 3), (again, 3), (other, 4)):
        ended = compose(call, trained_run, out, "--num", 2, "--seed", seed)
        assert ended.status == 0, ended.err
    assert files(first) == files(again)
    suffixes = {Path(name).suffix for name in files(first)}
    assert suffixes == {".mid", ".wav", ".png"}
    both = files(first).keys() & files(other).keys()
    assert both
    assert all(files(first)[name] != files(other)[name] for name in both)


def test_a_primer_is_continued(call, trained_run, primer, tmp_path):
    ended = compose(call, trained_run, tmp_path, "--num", 2, "--primer", primer)
    assert ended.status == 0, ended.err
    given = read_chorale(primer).pitch
    pieces = [read_chorale(path).pitch for path in sorted(tmp_path.glob("*.mid"))]
    assert len(pieces) == 2
    for piece in pieces:
        np.testing.assert_array_equal(piece[:STEPS], given)
    assert max(map(len, pieces)) > STEPS


def low(path: Path) -> None:
    midi = pretty_midi.PrettyMIDI()
    track = pretty_midi.Instrument(0)
    track.notes = [pretty_midi.Note(80, 20, 0.0, 1.0)]
    midi.instruments = [track]
    midi.write(str(path))


def silent(path: Path) -> None:
    pretty_midi.PrettyMIDI().write(str(path))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.write_text("la la la"), "wanted a MIDI file, which begins with"),
        (lambda path: path.write_bytes(b""), "is empty; wanted a MIDI file"),
        (lambda path: path.write_bytes(b"MThd\0\0\0\6\0\1\0\1"), "ends after 12 bytes"),
        (lambda path: None, "is not a file; wanted a MIDI file"),
        (lambda path: path.mkdir(), "is not a file; wanted a MIDI file"),
        (silent, "has no notes"),
        (low, "(20); the vocabulary has 36 to 81"),
    ],
    ids=["text", "empty", "cut", "absent", "folder", "silent", "low"],
)
def test_a_primer_that_can_not_be_used_is_refused(call, trained_run, tmp_path, make, reason):
    make(tmp_path / "primer.mid")
    out = tmp_path / "out"
    ended = compose(call, trained_run, out, "--primer", tmp_path / "primer.mid")
    assert ended.status == 1
    assert reason in ended.err
    assert "primer" in ended.err
    assert not out.exists() or not list(out.iterdir())


def test_a_folder_that_is_no_run_is_named(call, tmp_path):
    ended = compose(call, tmp_path, tmp_path / "out")
    assert ended.status == 1
    assert f"{tmp_path} is no run folder" in ended.err


def test_a_place_that_can_not_be_written_is_named(call, trained_run, tmp_path):
    (tmp_path / "file").write_text("")
    ended = compose(call, trained_run, tmp_path / "file" / "out")
    assert ended.status == 1
    assert "file" in ended.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--num", 0], "--num must be at least 1, not 0"),
        (["--length", 0], "at least 1 new token"),
        (["--temperature", -1], "temperature"),
    ],
)
def test_impossible_requests_are_refused(call, trained_run, tmp_path, arguments, reason):
    ended = call(main, trained_run, "--out", tmp_path / "out", *arguments)
    assert ended.status in (1, 2)
    assert reason in ended.err


def test_an_unknown_flag_names_the_closest(call, trained_run, tmp_path):
    ended = compose(call, trained_run, tmp_path, "--primmer", "x.mid")
    assert ended.status == 2
    assert "--primer" in ended.out + ended.err
