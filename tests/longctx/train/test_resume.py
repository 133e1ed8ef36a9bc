"""A run that is killed and started again is, bit for bit, the run that never stopped."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from configs.catalogue import load_config
from longctx.train.checkpoint import Checkpoints
from longctx.train.log import Log
from longctx.train.loop import initialise
from longctx.train.run_folder import RunFolder
from scripts.train import main

ROOT = Path(__file__).parents[3]
TINY = ROOT / "tests" / "configs" / "tiny.py"
STEPS = 45
FLAGS = ["--steps", str(STEPS), "--evaluators.0.every", "15"]
"""Fifteen checkpoints, so that a kill often falls on one that is being written."""


def start(run_dir: Path, cache: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "scripts.train", str(TINY), "--run-dir", str(run_dir), *FLAGS]
    caching = {
        "JAX_COMPILATION_CACHE_DIR": os.environ.get("JAX_COMPILATION_CACHE_DIR", str(cache)),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **caching},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines(run_dir: Path) -> list[dict]:
    path = run_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step(run_dir: Path) -> int:
    return max((line["step"] for line in lines(run_dir)), default=0)


def being_written(run_dir: Path) -> bool:
    folder = run_dir / "checkpoints"
    return folder.is_dir() and any(not path.name.isdigit() for path in folder.iterdir())


def signal_when(process: subprocess.Popen, number: int, reached: Callable[[], bool]) -> str:
    """Send a signal as soon as a condition holds and return what the process printed."""
    while not reached():
        assert process.poll() is None, process.communicate()[0]
    process.send_signal(number)
    return process.communicate(timeout=120)[0]


def numbers(run_dir: Path) -> dict[tuple[int, str], float]:
    """Return every logged number that does not measure time; no step may have two values."""
    found = {}
    for line in lines(run_dir):
        for name, value in line.items():
            if name in ("step", "time") or name.startswith("speed/"):
                continue
            key = (line["step"], name)
            assert key not in found, f"{name} was logged twice at step {key[0]}"
            found[key] = value
    return found


def leaves(run_dir: Path, step: int) -> list[np.ndarray]:
    """Return parameters and optimizer state of a checkpoint."""
    folder = RunFolder(run_dir)
    config = folder.config()
    checkpoints = Checkpoints(folder.checkpoints, config)
    state = checkpoints.restore(step, initialise(config)[2]).state
    checkpoints.close()
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


def assert_same_run(run_dir: Path, unbroken: Path) -> None:
    assert numbers(run_dir) == numbers(unbroken)
    assert [line["step"] for line in lines(run_dir) if "train/loss" in line] == [
        *range(1, STEPS + 1)
    ]
    for ours, theirs in zip(leaves(run_dir, STEPS), leaves(unbroken, STEPS), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    run_dir = tmp_path_factory.mktemp("unbroken")
    main([str(TINY), "--run-dir", str(run_dir), *FLAGS])
    return run_dir


def test_the_run_is_random_where_it_could_go_wrong():
    config = load_config(str(TINY))
    assert config.model.dropout > 0
    assert config.accumulate > 1
    assert max(map(len, config.data.sequences("train"))) > config.window


def test_killed_and_stopped_the_run_continues_bit_for_bit(unbroken, cache, tmp_path):
    """Killed while a checkpoint is written, killed at some step, stopped by SIGTERM."""
    run_dir = tmp_path / "run"
    process = start(run_dir, cache)
    signal_when(process, signal.SIGKILL, lambda: last_step(run_dir) > 3 and being_written(run_dir))
    assert process.returncode == -signal.SIGKILL
    assert 3 < last_step(run_dir) < STEPS

    process = start(run_dir, cache)
    signal_when(process, signal.SIGKILL, lambda: last_step(run_dir) >= 16)
    assert process.returncode == -signal.SIGKILL
    assert 16 <= last_step(run_dir) < STEPS

    process = start(run_dir, cache)
    text = signal_when(process, signal.SIGTERM, lambda: last_step(run_dir) >= 28)
    assert process.returncode == 130, text
    stopped = last_step(run_dir)
    assert f"stopped by SIGTERM after step {stopped}, which is saved" in " ".join(text.split())
    assert (run_dir / "checkpoints" / str(stopped)).is_dir()
    assert "Traceback" not in text

    main([str(TINY), "--run-dir", str(run_dir), *FLAGS])
    assert_same_run(run_dir, unbroken)
    assert_tensorboard_is_whole(run_dir)


def assert_tensorboard_is_whole(run_dir: Path) -> None:
    """Every step once, although four processes wrote."""
    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    losses = {(event.step, event.value) for event in events.Scalars("train/loss")}
    logged = {(line["step"], line["train/loss"]) for line in lines(run_dir) if "train/loss" in line}
    assert losses == {(step, float(np.float32(loss))) for step, loss in logged}
    assert len(events.Scalars("train/loss")) == STEPS


@pytest.mark.slow
def test_killed_at_every_third_step_the_run_continues_bit_for_bit(unbroken, cache, tmp_path):
    run_dir = tmp_path / "run"
    for step in range(1, STEPS - 8, 3):
        process = start(run_dir, cache)
        signal_when(process, signal.SIGKILL, lambda step=step: last_step(run_dir) >= step)
        assert process.returncode == -signal.SIGKILL
    main([str(TINY), "--run-dir", str(run_dir), *FLAGS])
    assert_same_run(run_dir, unbroken)


def test_starting_a_finished_run_again_changes_nothing(unbroken):
    before = numbers(unbroken), leaves(unbroken, STEPS)
    main([str(TINY), "--run-dir", str(unbroken), *FLAGS])
    assert numbers(unbroken) == before[0]
    for ours, theirs in zip(leaves(unbroken, STEPS), before[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_log_cut_short_by_a_kill_loses_only_the_cut_line(unbroken, tmp_path):
    folder = RunFolder(tmp_path)
    whole = (unbroken / "metrics.jsonl").read_text().splitlines(keepends=True)
    folder.metrics.write_text("".join(whole[:5]) + whole[5][:20])
    Log(folder, step=4, steps=STEPS).close()
    assert folder.metrics.read_text() == "".join(whole[:4])
