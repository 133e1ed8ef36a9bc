import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("music21", reason="needs music21: pip install music21")

from longctx.data.base import SPLITS, Split
from music import chorale_build
from music.chorale import Chorale
from music.chorale_build import Collection, build, check_split, corpus_files, npz_bytes, split_of
from music.chorales import load_chorales, unpack
from scripts import build_chorales

EMBEDDED = {c.name: (split, c) for split in SPLITS for c in load_chorales(split)}


def scores(*names: str) -> list[Path]:
    return [path for path in corpus_files() if path.name in names]


def assert_same(one: Chorale, other: Chorale) -> None:
    for field in ("pitch", "onset", "fermata"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field), one.name)
    for field in ("tonic", "minor", "meter", "pickup", "name"):
        assert getattr(one, field) == getattr(other, field), one.name


def test_scores_give_the_embedded_chorales():
    """Eight parts; no voices named; a slip of a tie; triple meter; a rest before the pickup."""
    names = ["bwv19.7", "bwv66.6", "bwv113.8", "bwv362", "bwv56.5", "bwv347"]
    collection = build(scores(*(f"{name}.mxl" for name in names)))
    assert collection.dropped == {}
    built = {c.name: (split, c) for split in SPLITS for c in collection.pieces[split]}
    assert set(built) == set(names)
    for name, (split, chorale) in built.items():
        assert split == EMBEDDED[name][0]
        assert_same(chorale, EMBEDDED[name][1])


def test_unfit_scores_are_left_out_with_the_reason():
    reasons = {
        "bwv20.7.mxl": None,
        "bwv20.11.mxl": "near-duplicate of bwv20.7 (1.00",
        "bwv27.6.mxl": "more than four voices: several parts sing soprano",
        "bwv185.6.mxl": "off the sixteenth grid at quarter 6.875",
        "bwv248.9-1.mxl": "all voices rest for 48% of the piece",
        "bwv277.krn": "rights to derivative electronic formats reserved",
        "bwv846.mxl": "no four voices",
    }
    dropped = build(scores(*reasons)).dropped
    for name, reason in reasons.items():
        assert (reason or "kept") in dropped.get(name, "kept")


def table() -> dict[str, str]:
    """Return the files that the page lists, with their reasons."""
    page = (build_chorales.ROOT / "docs" / "chorales.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\S+)` \| (.+) \|$", page, re.MULTILINE))


def test_every_score_is_embedded_or_in_the_table():
    listed = list(table())
    kept = [path.name for path in corpus_files() if path.suffix != ".krn" and path.stem in EMBEDDED]
    assert sorted(kept + listed) == sorted(path.name for path in corpus_files())


def test_names_alone_decide_the_split():
    assert all(split_of(name) == split for name, (split, _) in EMBEDDED.items())
    shares = [split_of(f"piece {i}") for i in range(2000)]
    assert [round(shares.count(split) / 2000, 1) for split in SPLITS] == [0.6, 0.2, 0.2]


def test_a_split_with_a_leak_is_refused():
    pieces: dict[Split, list[Chorale]] = {split: list(load_chorales(split)) for split in SPLITS}
    check_split(pieces)
    copy = replace(pieces["train"][7], name="copy")
    with pytest.raises(ValueError, match="copy of test has 100% of its n-grams in train; wanted"):
        check_split(pieces | {"test": [*pieces["test"], copy]})


@pytest.fixture
def small_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    files = scores("bwv66.6.mxl", "bwv347.mxl", "bwv277.krn", "bwv8.6.mxl")
    monkeypatch.setattr(build_chorales, "corpus_files", lambda: files)


@pytest.mark.usefixtures("small_corpus")
def test_the_script_writes_the_same_file_and_table_twice(tmp_path: Path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"Some text.\n\n{build_chorales.TABLE_HEAD}| `gone` | an old row |\n")
    for out in ("one.npz", "two.npz"):
        build_chorales.main(["--out", str(tmp_path / out), "--table", str(page)])
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    text = page.read_text()
    assert text.startswith("Some text.\n\n| file |")
    assert text.endswith(f"|---|---|\n| `bwv277.krn` | {chorale_build.KRN_LICENCE} |\n")
    printed = capsys.readouterr().out
    assert f"left out bwv277.krn: {chorale_build.KRN_LICENCE}" in printed
    assert len(re.findall("^sha256 [0-9a-f]{64}$", printed, re.MULTILINE)) == 2
    with np.load(tmp_path / "one.npz", allow_pickle=False) as arrays:
        pieces = unpack(dict(arrays))
    assert {c.name for split in SPLITS for c in pieces[split]} == {"bwv66.6", "bwv347", "bwv8.6"}


@pytest.mark.usefixtures("small_corpus")
def test_a_page_without_the_table_is_left_alone(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("Some text.\n")
    with pytest.raises(ValueError, match="has no table that begins with"):
        build_chorales.write_table(page, Collection(pieces={}, dropped={}))
    assert page.read_text() == "Some text.\n"


@pytest.mark.slow
def test_a_whole_rebuild_gives_the_embedded_file():
    collection = build(corpus_files())
    for split in SPLITS:
        for one, other in zip(collection.pieces[split], load_chorales(split), strict=True):
            assert_same(one, other)
    assert collection.dropped == table()
    assert npz_bytes(collection.pieces) == npz_bytes(build(corpus_files()).pieces)
