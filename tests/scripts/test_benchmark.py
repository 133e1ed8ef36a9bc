"""The benchmark program: which cases it measures, and what it writes; nothing is measured here."""

import json
import sys

import pytest

from eval.speed_table import BEGIN, END
from scripts import benchmark


@pytest.fixture
def measured(monkeypatch):
    """Return the names that the program asks to measure, which all take one CPU second."""
    asked = []

    def run_cases(names, repeats, torch_python):
        asked.extend(names)
        numbers = {"tokens": 10, "cpu_seconds": 1.0, "wall_seconds": 1.0}
        more = {"peak_bytes": 1e9, "load_before": 0.0}
        good = [name for name in names if "4096" not in name]
        return [{"case": name, **numbers, **more} for name in good for _ in range(repeats)], [
            name for name in names if "4096" in name
        ]

    monkeypatch.setattr(benchmark, "run_cases", run_cases)
    return asked


def test_results_are_written_without_the_paths_of_the_machine(measured, tmp_path, monkeypatch):
    out, lines = tmp_path / "out.md", tmp_path / "lines.jsonl"
    out.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    words = ["--cases", "1024x4", f"--torch-python={tmp_path}/python", "--repeats", "2"]
    words += ["--out", str(out), "--json", str(lines)]
    monkeypatch.setattr(sys, "argv", ["benchmark", *words])
    benchmark.main(words)
    text = out.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "`torch_gpt`" in text
    assert "--torch-python=python --repeats 2 --out out.md" in text
    assert str(tmp_path) not in text
    assert len([json.loads(line) for line in lines.read_text().splitlines()]) == 2 * len(measured)


def test_what_takes_minutes_is_measured_on_request(measured, tmp_path):
    words = ["--torch-python", str(tmp_path), "--cases", "generate/512"]
    benchmark.main(words)
    assert "torch_gpt/generate/512x1" in measured
    assert "torch_music_transformer/generate/512x1" not in measured
    benchmark.main([*words, "--slow"])
    assert "torch_music_transformer/generate/512x1" in measured


def test_peers_need_torch(measured, monkeypatch, capsys):
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda name: None)
    benchmark.main(["--cases", "1024x4"])
    assert measured
    assert all(name.startswith("longctx/") for name in measured)
    assert "--torch-python" in capsys.readouterr().out


def test_a_failure_is_the_status_and_keeps_the_file(measured, tmp_path):
    out = tmp_path / "out.md"
    out.write_text(f"{BEGIN}\nold\n{END}")
    with pytest.raises(SystemExit, match="failed: longctx/train/4096x1"):
        benchmark.main(["--cases", "longctx/train/4096x1", "--out", str(out)])
    assert "old" in out.read_text()


def test_no_case_and_no_repeat_are_refused(measured):
    with pytest.raises(ValueError, match="no case is left"):
        benchmark.main(["--cases", "absent"])
    with pytest.raises(ValueError, match="repeats must be"):
        benchmark.main(["--repeats", "0"])
