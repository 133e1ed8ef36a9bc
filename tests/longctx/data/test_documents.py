"""Documents from files: each in one split that stays, nothing lost in silence, errors that help."""

import json
import sysconfig
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from longctx.data.base import SPLITS, data_hash
from longctx.data.documents import Document
from longctx.data.json_lines import JsonLines
from longctx.data.parquet import Parquet
from longctx.data.python_source import PythonSource
from longctx.data.text_folder import TextFolder
from longctx.data.tokenizers import Bytes, Tokenizer
from longctx.serialise import from_json, to_json

TEXTS = [f"document {i}: " + "ä" * i for i in range(200)]


def write_folder(path: Path, texts, name="{}.txt") -> str:
    path.mkdir(parents=True, exist_ok=True)
    for i, text in enumerate(texts):
        (path / name.format(i)).write_text(text, encoding="utf-8")
    return str(path)


def write_lines(path: Path, texts) -> str:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def write_parquet(path: Path, texts) -> str:
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path)
    return str(path)


@pytest.fixture(params=["folder", "lines", "parquet"])
def write(request, tmp_path):
    """Return a function that stores texts and returns their data config."""
    forms = {
        "folder": lambda texts, **k: TextFolder(write_folder(tmp_path / "texts", texts), **k),
        "lines": lambda texts, **k: JsonLines(write_lines(tmp_path / "t.jsonl", texts), **k),
        "parquet": lambda texts, **k: Parquet(write_parquet(tmp_path / "t.parquet", texts), **k),
    }
    return forms[request.param]


def spelled(data, split) -> list[str]:
    return [data.vocabulary().decode(tokens) for tokens in data.sequences(split)]


def test_every_document_is_in_one_split(write):
    data = write(TEXTS, valid_share=0.2, test_share=0.1)
    splits = {split: spelled(data, split) for split in SPLITS}
    assert sorted(text for texts in splits.values() for text in texts) == sorted(TEXTS)
    assert 20 < len(splits["valid"]) < 60
    assert 7 < len(splits["test"]) < 40


def test_splits_stay_under_another_order_and_more_documents(write):
    few = write(TEXTS[:150])
    before = {split: set(spelled(few, split)) for split in SPLITS}
    again = write(TEXTS[:150][::-1])
    assert [data_hash(few, split) for split in SPLITS] == [
        data_hash(again, split) for split in SPLITS
    ]
    more = write(TEXTS)
    for split in SPLITS:
        assert before[split] <= set(spelled(more, split))


def test_splits_stay_under_other_names(tmp_path):
    first = TextFolder(write_folder(tmp_path / "a", TEXTS))
    second = TextFolder(write_folder(tmp_path / "b/c", TEXTS, "renamed_{}.md"), pattern="*.md")
    for split in SPLITS:
        assert data_hash(first, split) == data_hash(second, split)
    assert first.manifest() != second.manifest()
    assert first.manifest() == TextFolder(write_folder(tmp_path / "d", TEXTS)).manifest()


def test_all_sources_hold_the_same_documents(tmp_path):
    hashes = {
        data_hash(data, "train")
        for data in (
            TextFolder(write_folder(tmp_path / "texts", TEXTS)),
            JsonLines(write_lines(tmp_path / "t.jsonl", TEXTS)),
            JsonLines(str(tmp_path)),
            Parquet(write_parquet(tmp_path / "t.parquet", TEXTS)),
            Parquet(str(tmp_path)),
        )
    }
    assert len(hashes) == 1


def test_empty_documents_are_dropped(write):
    data = write(["", "a", ""], valid_share=0, test_share=0)
    assert spelled(data, "train") == ["a"]
    assert data.manifest()["documents"] == "1"
    with pytest.raises(ValueError, match="holds no text: every document is empty"):
        write(["", "", ""]).sequences("train")


def test_null_rows_are_empty_documents(tmp_path):
    data = Parquet(write_parquet(tmp_path / "t.parquet", [None, "a"]), valid_share=0, test_share=0)
    assert spelled(data, "train") == ["a"]


def test_tokens_are_small_arrays_read_once(write):
    data = write(TEXTS)
    first, again = data.sequences("train"), data.sequences("train")
    assert {tokens.dtype for tokens in first} == {np.dtype(np.int16)}
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_a_large_vocabulary_gets_wide_tokens(tmp_path):
    class Wide(Tokenizer):
        names = ("boundary", *map(str, range(70_000)))

        def ids(self, text):
            return [69_999] * len(text)

        def text(self, ids):
            return "x" * len(ids)

    data = TextFolder(write_folder(tmp_path / "t", ["abc"]), tokenizer=Wide(), valid_share=0)
    assert [list(tokens) for tokens in data.sequences("train")] == [[70_000] * 3]


def test_a_config_survives_json(write):
    data = write(TEXTS, valid_share=0.3)
    assert from_json(to_json(data)) == data


@pytest.mark.parametrize(("valid", "test"), [(-0.1, 0.1), (0.5, 0.5), (0.1, 1.0)])
def test_shares_that_leave_nothing_to_train_on_are_refused(valid, test):
    with pytest.raises(ValueError, match=r"valid_share and test_share are .* leaves something"):
        TextFolder("x", valid_share=valid, test_share=test)


@pytest.mark.parametrize("kind", [TextFolder, JsonLines, Parquet])
def test_a_missing_source_is_named(kind, tmp_path):
    with pytest.raises(ValueError, match=r"there is nothing at .*missing; give a file or a folder"):
        kind(str(tmp_path / "missing")).sequences("train")
    with pytest.raises(ValueError, match=r"no file in .* matches '\*\*/\*\..*'; give another"):
        kind(str(tmp_path)).sequences("train")


def test_an_unknown_split_is_refused(write):
    with pytest.raises(ValueError, match="split is 'tests'; wanted one of train, valid, test"):
        write(TEXTS[:1]).sequences("tests")


def test_a_file_that_is_no_utf8_is_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.txt is no UTF-8: byte 1 is 0xfc; convert"):
        TextFolder(str(tmp_path)).sequences("train")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": ', "t.jsonl:3 is no JSON"),
        (b'{"text": "\xff"}', "t.jsonl:3 is no JSON"),
        (b'{"body": "a"}', r"t.jsonl:3 has no text in the field 'text', it has \['body'\]"),
        (b'{"text": 5}', "t.jsonl:3 has no text"),
        (b'["text"]', "t.jsonl:3 has no text in the field 'text', it has list"),
        (b'{"text": "\\ud800"}', "t.jsonl:3: character 0 is .* half of a surrogate pair"),
    ],
)
def test_a_bad_line_is_named(line, reason, tmp_path):
    (tmp_path / "t.jsonl").write_bytes(b'{"text": "a"}\n\n' + line + b"\n")
    with pytest.raises(ValueError, match=reason):
        JsonLines(str(tmp_path)).sequences("train")


def test_a_parquet_column_is_checked(tmp_path):
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"body": ["a"], "number": [1]}), path)
    with pytest.raises(ValueError, match=r"no column 'text' of strings, it has \{'body': 'string'"):
        Parquet(str(path)).sequences("train")
    with pytest.raises(ValueError, match="no column 'number' of strings"):
        Parquet(str(path), column="number").sequences("train")
    assert Parquet(str(path), column="body").manifest()["documents"] == "1"
    path.write_text("text")
    with pytest.raises(ValueError, match=r"t\.parquet is no Parquet file"):
        Parquet(str(path)).sequences("train")


def write_library(root: Path) -> Path:
    for name in (
        "json/decoder.py",
        "json/__init__.py",
        "abc.py",
        "test/test_abc.py",
        "json/tests/test_json.py",
        "site-packages/numpy.py",
        "__pycache__/abc.py",
        "_sysconfigdata_x.py",
        "abc.txt",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"# {name}")
    (root / "latin.py").write_bytes(b"# \xfc")
    return root


def test_python_source_leaves_out_tests_and_what_is_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(write_library(tmp_path)))
    names = [document.name for document in PythonSource().documents()]
    assert names == ["abc.py", "json/__init__.py", "json/decoder.py"]


def test_a_python_without_source_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match="holds no Python source; use a Python"):
        PythonSource().sequences("train")


def test_the_manifest_changes_with_names_and_contents(tmp_path, monkeypatch):
    root = write_library(tmp_path)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(root))
    hashes = [PythonSource().manifest()["sha256"], PythonSource().manifest()["sha256"]]
    assert hashes[0] == hashes[1]
    (root / "abc.py").rename(root / "abd.py")
    hashes.append(PythonSource().manifest()["sha256"])
    (root / "json/decoder.py").write_text("# changed")
    hashes.append(PythonSource().manifest()["sha256"])
    assert len(set(hashes)) == 3


def test_files_of_a_package_are_in_one_split():
    data = PythonSource()
    where: dict[str, set[str]] = {}
    text = {split: set(spelled(data, split)) for split in SPLITS}
    for document in data.documents():
        top = document.name.split("/")[0]
        alone = [split for split in SPLITS if document.text in text[split]]
        if len(alone) == 1:
            where.setdefault(top, set()).update(alone)
    assert len(where) > 150
    assert all(len(splits) == 1 for splits in where.values())
    assert where["json"] == {"valid"}
    assert where["idlelib" if "idlelib" in where else "dataclasses.py"] == {"test"}


def test_a_module_and_a_package_of_one_name_are_one_group():
    group = PythonSource().group
    assert group(Document("json.py", "")) == group(Document("json/decoder.py", "")) == "json"


def test_the_embedded_library_is_long_text():
    data = PythonSource()
    tokens = data.sequences("train")
    assert sum(map(len, tokens)) > 5_000_000
    assert max(map(len, tokens)) > 100_000
    assert sum(map(len, data.sequences("valid"))) > 100_000
    assert data.manifest()["documents"] == str(sum(len(data.sequences(s)) for s in SPLITS))
    assert isinstance(data.vocabulary(), Bytes)
