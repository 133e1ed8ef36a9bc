import json
import re
from pathlib import Path

import numpy as np
import pytest

from longctx.data.base import SPLITS, data_hash
from music.jsb import JSB, load_jsb

FILES = ["jsb16_satb.npz", "Jsb16thSeparated.json"]


@pytest.mark.parametrize("name", FILES)
def test_the_published_counts(shared_data, name: str):
    data = JSB(str(shared_data("jsb") / name))
    assert len(data.vocabulary().names) == 48
    sequences = {split: data.sequences(split) for split in SPLITS}
    assert [len(sequences[split]) for split in SPLITS] == [229, 76, 77]
    steps = [sum(map(len, sequences[split])) / 4 for split in SPLITS]
    assert steps == [55_228, 18_408, 18_900]
    lengths = {split: [len(s) for s in sequences[split]] for split in SPLITS}
    assert np.bincount(lengths["train"]).argmax() == 1040
    assert (np.median(lengths["train"]), max(lengths["test"])) == (912, 2560)
    used = np.unique(np.concatenate([s for split in SPLITS for s in sequences[split]]))
    assert (used[0], used[1], used[-1]) == (1, 2, 47)  # rest, lowest pitch, highest pitch


def test_both_files_hold_the_same_pieces(shared_data):
    one, other = (JSB(str(shared_data("jsb") / name)) for name in FILES)
    for split in SPLITS:
        assert data_hash(one, split) == data_hash(other, split)


STEP = [72, 67, 64, 48]


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, content: object) -> str:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif name.endswith(".json"):
            path.write_text(json.dumps(content))
        else:
            np.savez(path, **content)  # pyright: ignore[reportCallIssue]
        return str(path)

    return write


def npz(steps: list, lengths: list[int]) -> dict[str, np.ndarray]:
    return {"train": np.array(steps, np.int8), "train_lengths": np.array(lengths)}


def test_pieces_are_cut_where_the_lengths_say(write):
    pieces = load_jsb(write("a.npz", npz([STEP] * 3, [1, 2])), "train")
    assert [(piece.name, piece.steps) for piece in pieces] == [("train 0", 1), ("train 1", 2)]
    (piece,) = load_jsb(write("a.json", {"train": [[STEP, STEP]]}), "train")
    assert piece.onset.tolist() == [[True] * 4, [False] * 4]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.txt", b"", "ends in '.txt'; wanted a .json or .npz file"),
        ("a.json", b"{", "does not hold JSB: JSONDecodeError"),
        ("a.json", b"\xff", "does not hold JSB: UnicodeDecodeError"),
        ("a.json", {"valid": []}, "does not hold JSB: KeyError('train')"),
        ("a.json", [1, 2], "does not hold JSB: TypeError"),
        ("a.json", {"train": [[STEP, [1]]]}, "does not hold JSB: ValueError"),
        ("a.json", {"train": [[[72, 67, 64]]]}, "train 0 has shape (1, 3); wanted [steps, 4]"),
        ("a.json", {"train": [[[72, 67, 64, 48.5]]]}, "train 0 has numbers that are not pitches"),
        ("a.json", {"train": [[STEP], [[72, 67, 64, -2]]]}, "train 1 has numbers that are not"),
        ("a.json", {"train": [[[72, 67, 64, 300]]]}, "train 0 has numbers that are not pitches"),
        ("a.json", {"train": [[[72, 67, 64, 20]]]}, "step 0 of the bass of train 0 is G#0 (20)"),
        ("a.npz", b"PK\x03\x04 broken", "does not hold JSB"),
        ("a.npz", b"", "does not hold JSB"),
        ("a.npz", {"valid": np.zeros(3)}, "does not hold JSB"),
        ("a.npz", npz([STEP] * 3, [1, 1]), "`train_lengths` adds up to 2; wanted the 3 steps"),
        ("a.npz", {"train": np.array([None]), "train_lengths": np.array([1])}, "does not hold JSB"),
    ],
)
def test_a_file_with_something_else_is_refused(write, name: str, content: object, complaint: str):
    path = write(name, content)
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        JSB(path).sequences("train")
    assert name in str(caught.value) or "vocabulary" in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(FileNotFoundError, match=re.escape("no JSB file at nowhere.npz; wanted")):
        JSB("nowhere.npz").sequences("train")


def test_a_wrong_split_is_refused():
    with pytest.raises((ValueError, TypeError), match="split"):
        load_jsb("nowhere.npz", "dev")  # pyright: ignore[reportArgumentType]
