"""What ends, stalls or floods a worker costs one file, and the others are read."""

import time
from itertools import count, islice
from pathlib import Path

import pytest
from midi_bytes import SCALE, file

from music.midi import Limits, Read, read_midi
from music.midi.isolated import read_many

LIMITS = Limits(seconds=3, memory=1 << 30)
ODD = "odd_parsers:parse"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("a", "crash", "b", "hang", "c", "grow", "d", "leave", "e", "raise", "f", "print", "g")
    for number, name in enumerate(names):
        (tmp_path / f"{number:02}-{name}.mid").write_bytes(file(SCALE))
    return tmp_path


@pytest.mark.parametrize("workers", [1, 2])
def test_one_file_is_lost_at_a_time(folder: Path, workers: int):
    paths = sorted(folder.iterdir())
    start = time.monotonic()
    found = list(read_many(paths, workers, LIMITS, ODD))
    assert time.monotonic() - start < 60
    assert [path for path, _ in found] == paths
    reasons = {path.stem[3:]: read.reasons for path, read in found if read.status == "skipped"}
    assert reasons == {
        "crash": ("ends the process that reads it (SIGSEGV)",),
        "hang": ("takes more than 3 seconds to read",),
        "grow": ("takes more than 1,073,741,824 bytes of memory to read",),
        "leave": ("ends the process that reads it (exit status 3)",),
        "raise": ("cannot be read: RuntimeError: no such thing",),
    }
    whole = read_midi(file(SCALE))
    for path, read in found:
        if path.stem[3:] not in reasons:
            assert read == Read("ok", (), whole.score)


def test_scores_come_back_as_they_were_read(tmp_path: Path):
    names = "00 ff 03 02 c3 a9 00 ff 05 01 6c 00 ff 51 03 01 02 03 00 ff 58 04 03 02 18 08"
    for number, content in enumerate((file(names + SCALE), file(SCALE)[:-6], b"no music")):
        (tmp_path / f"{number}.mid").write_bytes(content)
    for path, read in read_many(sorted(tmp_path.iterdir())):
        assert read == read_midi(path)


def test_paths_are_taken_as_needed(tmp_path: Path):
    path = tmp_path / "a.mid"
    path.write_bytes(file(SCALE))
    endless = (path for _ in count())
    assert all(read.status == "ok" for _, read in islice(read_many(endless), 20))


def test_a_parser_that_is_not_there_is_an_error(tmp_path: Path):
    with pytest.raises(RuntimeError, match="reads MIDI files with nowhere:parse does not start"):
        list(read_many([tmp_path], parser="nowhere:parse"))
    with pytest.raises(ValueError, match="workers is 0; wanted at least one process"):
        read_many([], workers=0)
