"""Measuring: medians after a warm-up, memory of the own process, messages that help."""

import json
import os
import subprocess
import sys
import time

import pytest

from eval import speed, usage


def test_the_median_is_taken_after_the_warm_up():
    durations = iter([0.3, 0.01, 0.2, 0.01])
    result = usage.measure(lambda: time.sleep(next(durations)), steps=3, warmup=1)
    assert result["wall_seconds"] == pytest.approx(0.01, abs=0.05)
    assert len(result["all_cpu_seconds"]) == 3
    assert result["cpu_seconds"] < 0.01


def test_busy_time_counts_as_cpu_time():
    def burn():
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass

    assert usage.measure(burn, steps=1, warmup=0)["cpu_seconds"] == pytest.approx(0.1, rel=0.3)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ru_maxrss is read")
def test_the_peak_is_that_of_the_process_not_of_its_parent():
    ballast = b"x" * (300 << 20)
    command = [sys.executable, "-c", "from eval import usage; print(usage.peak_bytes())"]
    peak = int(subprocess.check_output(command, cwd=speed.ROOT, text=True))
    assert 0 < peak < len(ballast)


def test_a_case_runs_in_its_own_process(monkeypatch, capsys):
    monkeypatch.setitem(speed.CASES, "nothing", lambda: {"tokens": 1} | usage.measure(list))
    speed.main(["nothing", "--json"])
    assert json.loads(capsys.readouterr().out)["case"] == "nothing"
    with pytest.raises(SystemExit):
        speed.main(["absent"])
    assert "torch_gpt/train/1024x4" in capsys.readouterr().err
    with pytest.raises(RuntimeError, match="absent is no case"):
        speed.run_case("absent")


def test_busy_cores_are_between_none_and_all():
    assert 0 <= usage.busy_cores(0.05) <= (os.cpu_count() or 1) * 1.5


def test_a_case_that_fails_does_not_stop_the_others(monkeypatch, capsys):
    def run_case(name, python):
        if name == "torch_gpt/bad":
            raise RuntimeError(f"{python} has no torch")
        return {"case": name, "tokens": 6, "cpu_seconds": 2.0}

    monkeypatch.setattr(speed, "run_case", run_case)
    results, failures = speed.run_cases(["torch_gpt/bad", "good"], 2, "other-python")
    assert [result["case"] for result in results] == ["good", "good"]
    assert failures == ["torch_gpt/bad"] * 2
    assert "other-python has no torch" in capsys.readouterr().out


def test_no_step_is_refused():
    with pytest.raises(ValueError, match="steps=0"):
        usage.measure(list, steps=0)
