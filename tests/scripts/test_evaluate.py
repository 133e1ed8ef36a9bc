"""`python -m scripts.evaluate`: the likelihood beside its baselines, with its protocol."""

import json

import pytest

from eval.baselines import baselines
from eval.likelihood import Likelihood
from longctx.data.base import data_hash
from longctx.data.vocabulary import vocabulary_hash
from longctx.train.load import load_trained
from scripts.evaluate import main


@pytest.fixture(scope="module")
def trained(trained_run):
    return load_trained(trained_run)


def test_the_table_stands_beside_the_baselines_and_the_file_holds_the_protocol(
    call, trained_run, trained
):
    ended = call(main, trained_run, "--split", "valid", "--window", 128, "--stride", 64)
    assert ended.status == 0, ended.err
    report = json.loads((trained_run / "likelihood.json").read_text())
    (trained_run / "likelihood.json").unlink()
    assert report["step"] == trained.step
    assert report["splits"].keys() == {"valid"}
    valid = report["splits"]["valid"]
    assert valid["controls"] == baselines(trained.data, "valid")
    assert valid["model"] == dict(Likelihood(window=128, stride=64).run(trained))["valid/nll"]
    protocol = valid["protocol"]
    sequences = trained.data.sequences("valid")
    assert protocol["data hash"] == data_hash(trained.data, "valid")
    assert vocabulary_hash(trained.data.vocabulary()) in protocol["vocabulary"]
    assert (protocol["window"], protocol["stride"]) == (128, 64)
    assert (protocol["pieces"], protocol["tokens"]) == (len(sequences), sum(map(len, sequences)))

    rows = {line.rsplit("│", 2)[0].strip("│ "): line for line in ended.out.splitlines()}
    for label in ("uniform", "unigram per voice", "copy this voice's last step, else bigram"):
        assert label in rows, ended.out
    for value in (*valid["controls"].values(), valid["model"]):
        assert f"{value:.4f}" in ended.out
    assert f"model at step {trained.step}" in ended.out
    assert "window 128" in " ".join(ended.out.split())


def test_without_flags_both_splits_are_scored_at_the_training_window(
    call, trained_run, trained, tmp_path
):
    out = tmp_path / "numbers.json"
    ended = call(main, trained_run, "--out", out, "--checkpoint", "last")
    assert ended.status == 0, ended.err
    report = json.loads(out.read_text())
    assert report["step"] == 30
    assert list(report["splits"]) == ["valid", "test"]
    for split in report["splits"].values():
        assert (split["protocol"]["window"], split["protocol"]["stride"]) == (16, 8)
    assert not (trained_run / "likelihood.json").exists()


@pytest.mark.parametrize("stride", [200, -1])
def test_an_impossible_stride_is_refused(call, trained_run, stride):
    ended = call(main, trained_run, "--window", 128, "--stride", stride)
    assert ended.status == 1
    assert f"stride must lie between 1 and the window 128, not {stride}" in ended.err


def test_a_folder_that_is_no_run_is_named(call, tmp_path):
    ended = call(main, tmp_path)
    assert ended.status == 1
    assert f"{tmp_path} is no run folder" in ended.err


def test_an_unknown_split_names_the_known(call, trained_run):
    ended = call(main, trained_run, "--split", "training")
    assert ended.status == 2
    assert "valid" in ended.out + ended.err
