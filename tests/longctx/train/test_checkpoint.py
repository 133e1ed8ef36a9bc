"""Checkpoints: best and last are kept, damage is found, and every refusal says what to do."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import jax
import numpy as np
import pytest

from configs.catalogue import load_config
from longctx.data.vocabulary import vocabulary_hash
from longctx.data.windows import training_batches
from longctx.evaluator import Evaluator
from longctx.train.checkpoint import CheckpointError, Checkpoints
from longctx.train.load import load_trained
from longctx.train.loop import initialise, train
from longctx.train.run_folder import RunFolder
from longctx.train.state import TrainState, fingerprint
from music.chorales import Chorales

TINY = load_config(str(Path(__file__).parents[2] / "configs" / "tiny.py"))


@lru_cache(maxsize=1)
def first_state() -> TrainState:
    return initialise(TINY)[2]


def state_at(step: int) -> TrainState:
    return jax.tree.map(lambda leaf: leaf + leaf.dtype.type(step), first_state())


def batches():
    data = TINY.data
    return training_batches(
        data.sequences("train"), data.vocabulary(), TINY.window, TINY.batch, TINY.seed
    )


def write(folder: Path, scores: dict[int, float | None]) -> None:
    """Save a checkpoint at each step, with its score where it has one."""
    checkpoints = Checkpoints(folder, TINY)
    for step, score in scores.items():
        measured = {} if score is None else {"valid/nll": score}
        checkpoints.save(step, state_at(step), batches(), measured)
    checkpoints.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder whose best checkpoint is 2 and whose last is 5."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    write(folder, {1: 2.0, 2: 1.0, 3: None, 4: 3.0, 5: 2.5})
    return folder


@pytest.fixture
def copy(written, tmp_path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "checkpoints"))


def assert_restores(folder: Path, step: int) -> None:
    checkpoints = Checkpoints(folder, TINY)
    restored = checkpoints.restore(step, first_state())
    checkpoints.close()
    assert restored.step == step
    jax.tree.map(np.testing.assert_array_equal, restored.state, state_at(step))


def test_the_best_and_the_last_are_kept(written):
    checkpoints = Checkpoints(written, TINY)
    assert checkpoints.steps() == [2, 5]
    assert checkpoints.best_step() == 2
    assert_restores(written, 2)
    assert_restores(written, 5)


def test_without_scores_the_last_is_the_best_and_without_checkpoints_there_is_none(tmp_path):
    assert Checkpoints(tmp_path / "none", TINY).best_step() is None
    write(tmp_path / "some", {3: None, 7: None})
    checkpoints = Checkpoints(tmp_path / "some", TINY)
    assert checkpoints.steps() == [7]
    assert checkpoints.best_step() == 7


def test_a_score_that_is_no_number_is_no_score(tmp_path):
    nan = float("nan")
    write(tmp_path, {1: nan, 2: 1.0, 3: nan, 4: float("inf"), 5: 2.0, 6: nan})
    checkpoints = Checkpoints(tmp_path, TINY)
    assert checkpoints.steps() == [2, 6]
    assert checkpoints.best_step() == 2


def test_saving_returns_before_the_checkpoint_is_on_disk(tmp_path, monkeypatch):
    """What is saved is the state at the call, whatever becomes of the buffers after it."""
    checkpoints = Checkpoints(tmp_path, TINY)
    state = state_at(1)
    checkpoints.save(1, state, batches(), {})
    assert checkpoints._manager.is_saving_in_progress()
    jax.tree.map(lambda leaf: leaf.delete(), state)
    checkpoints.close()
    assert_restores(tmp_path, 1)


def test_the_place_in_the_data_is_restored(tmp_path):
    data = batches()
    for _ in range(11):
        next(data)
    checkpoints = Checkpoints(tmp_path, TINY)
    checkpoints.save(11, state_at(0), data, {})
    checkpoints.close()
    expected = [next(data) for _ in range(3)]
    fresh = batches()
    Checkpoints(tmp_path, TINY).restore(11, first_state(), fresh)
    for batch in expected:
        jax.tree.map(np.testing.assert_array_equal, next(fresh), batch)


def biggest(folder: Path) -> Path:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def flip(path: Path, count: int = 64) -> None:
    content = bytearray(path.read_bytes())
    for index in np.linspace(len(content) // 4, len(content) - 1, count).astype(int):
        content[index] ^= 0x10
    path.write_bytes(content)


def flip_everywhere(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size:
            flip(path, 1)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


PLACE = "process_0-of-1.json"

DAMAGE: dict[str, Callable[[Path], object]] = {
    "the biggest file of the state is cut": lambda step: truncate(biggest(step / "state")),
    "the biggest file of the state is empty": lambda step: os.truncate(biggest(step / "state"), 0),
    "the biggest file of the state has flipped bits": lambda step: flip(biggest(step / "state")),
    "every file of the state has a flipped bit": lambda step: flip_everywhere(step / "state"),
    "the manifest is gone": lambda step: (step / "state" / "manifest.ocdbt").unlink(),
    "the metadata of the state are gone": lambda step: (step / "state" / "_METADATA").unlink(),
    "the metadata of the state are cut": lambda step: truncate(step / "state" / "_METADATA"),
    "the state is gone": lambda step: shutil.rmtree(step / "state"),
    "our own description is gone": lambda step: shutil.rmtree(step / "meta"),
    "our own description is cut": lambda step: truncate(step / "meta" / "metadata"),
    "our own description is of something else": lambda step: (
        step / "meta" / "metadata"
    ).write_text("{}"),
    "our own description is no dictionary": lambda step: (step / "meta" / "metadata").write_text(
        "[1]"
    ),
    "the fingerprint is gone": lambda step: drop_fingerprint(step / "meta" / "metadata"),
    "the place in the data is gone": lambda step: shutil.rmtree(step / "data"),
    "the place in the data is cut": lambda step: truncate(step / "data" / PLACE),
    "the place in the data is another": lambda step: (step / "data" / PLACE).write_text(
        '{"next_index": 3}'
    ),
    "the place in the data is empty": lambda step: os.truncate(step / "data" / PLACE, 0),
}


def drop_fingerprint(path: Path) -> None:
    meta = json.loads(path.read_text())
    del meta["fingerprint"]
    path.write_text(json.dumps(meta))


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_an_error_that_says_which_step_and_what_to_do(copy, damage):
    DAMAGE[damage](copy / "5")
    checkpoints = Checkpoints(copy, TINY)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.restore(5, first_state(), batches())
    text = str(caught.value)
    assert f"checkpoint 5 in {copy} is damaged: " in text
    assert f"Delete {copy / '5'} to continue from step 2." in text
    assert len(text) < 1000
    shutil.rmtree(copy / "5")
    assert_restores(copy, 2)


OUTSIDE = {
    "the list of its items is gone": lambda step: (step / "_CHECKPOINT_METADATA").unlink(),
    "the list of its items is cut": lambda step: truncate(step / "_CHECKPOINT_METADATA"),
    "the list of its items is empty": lambda step: os.truncate(step / "_CHECKPOINT_METADATA", 0),
}


@pytest.mark.parametrize("damage", OUTSIDE)
def test_damage_to_what_only_orbax_reads_loses_nothing(copy, damage):
    """The arrays are whole, and come back as they were."""
    OUTSIDE[damage](copy / "5")
    assert_restores(copy, 5)
    assert_restores(copy, 2)


SCORE = {
    "cut": lambda step: truncate(step / "metrics" / "metrics"),
    "empty": lambda step: os.truncate(step / "metrics" / "metrics", 0),
    "a list": lambda step: (step / "metrics" / "metrics").write_text("[]"),
    "of another name": lambda step: (step / "metrics" / "metrics").write_text('{"x": 1}'),
}


@pytest.mark.parametrize("damage", SCORE)
def test_a_damaged_score_is_an_error_that_says_which_step_and_what_to_do(copy, damage):
    SCORE[damage](copy / "5")
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(copy, TINY)
    assert f"checkpoint 5 in {copy} is damaged: its score" in str(caught.value)
    assert f"Delete {copy / '5'} to continue from step 2." in str(caught.value)
    shutil.rmtree(copy / "5")
    assert_restores(copy, 2)


@pytest.mark.parametrize("left", ["metrics", "metrics/commit_success.txt", "data", "state/d", ""])
def test_a_checkpoint_that_was_killed_while_it_was_deleted_is_no_hindrance(copy, left):
    """Deleting is not atomic; the older checkpoint is then partly there."""
    for path in sorted((copy / "2").rglob("*"), reverse=True):
        if not left or path.relative_to(copy / "2").as_posix() not in {left, left.split("/")[0]}:
            path.rmdir() if path.is_dir() else path.unlink()
    assert_restores(copy, 5)
    write(copy, {6: 3.0, 7: 0.1})
    checkpoints = Checkpoints(copy, TINY)
    assert checkpoints.steps()[-1] == 7
    assert checkpoints.best_step() == 7


def test_the_only_checkpoint_damaged_says_that_there_is_no_other(copy):
    shutil.rmtree(copy / "2")
    truncate(biggest(copy / "5" / "state"))
    with pytest.raises(CheckpointError, match="There is no other; train again in a new --run-dir"):
        Checkpoints(copy, TINY).restore(5, first_state())


def test_a_flipped_bit_changes_the_fingerprint():
    state = first_state()
    before = np.asarray(fingerprint(state))
    leaves, structure = jax.tree.flatten(state)
    for index, leaf in enumerate(leaves):
        raw = bytearray(np.asarray(leaf).tobytes())
        raw[len(raw) // 2] ^= 1
        changed = np.frombuffer(bytes(raw), leaf.dtype).reshape(leaf.shape)
        damaged = jax.tree.unflatten(structure, [*leaves[:index], changed, *leaves[index + 1 :]])
        differs = np.asarray(fingerprint(damaged)) != before
        assert np.flatnonzero(differs).tolist() == [index]


def test_a_checkpoint_of_another_config_is_refused_and_both_are_shown(written):
    other = replace(TINY, seed=7, optimizer=replace(TINY.optimizer, clip=0.5))
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(written, other).restore(5, first_state())
    text = str(caught.value)
    assert "checkpoint 5" in text
    assert "seed: 7, not 0" in text
    assert "optimizer.clip: 0.5, not 1.0" in text


def test_a_checkpoint_of_another_tokenizer_is_refused_and_both_are_shown(written):
    held = Chorales(held=True)
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(written, replace(TINY, data=held)).restore(5, first_state())
    for data in (TINY.data, held):
        assert vocabulary_hash(data.vocabulary()) in str(caught.value)


def test_a_run_without_checkpoints_says_so(tmp_path):
    RunFolder(tmp_path).create(TINY)
    for make in (False, True):
        (tmp_path / "checkpoints").mkdir() if make else None
        with pytest.raises(FileNotFoundError, match="holds no checkpoint yet"):
            load_trained(tmp_path)


def test_reading_a_run_changes_nothing_in_its_folder(written, tmp_path):
    """So that a run may be read while it trains."""
    RunFolder(tmp_path).create(TINY)
    shutil.copytree(written, tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "6.orbax-checkpoint-tmp").mkdir()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert load_trained(tmp_path).step == 2
    assert load_trained(tmp_path, "last").step == 5
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A disk of its own that a test can fill."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs the right to mount a file system: {error}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 12))
        except OSError:
            return


@dataclass(frozen=True)
class FullDisk(Evaluator):
    """Fills a disk before the checkpoint of its step is saved, unless a file forbids it.

    It waits until checkpoint 4 has replaced checkpoint 2: that deletion would make room again.
    """

    disk: str = ""

    def run(self, trained):
        checkpoints = Path(self.disk, "run", "checkpoints")
        if not Path(self.disk, "roomy").exists():
            until = time.monotonic() + 60
            while {path.name for path in checkpoints.iterdir()} != {"4"}:
                assert time.monotonic() < until, list(checkpoints.iterdir())
                time.sleep(0.02)
            fill(Path(self.disk))
        return iter(())


def test_a_full_disk_keeps_the_earlier_checkpoint_and_the_run_continues(small_disk):
    evaluators = (FullDisk(every=6, disk=str(small_disk)),)
    config = replace(TINY, evaluators=evaluators, steps=6, save_every=2, log_every=2)
    run_dir = small_disk / "run"
    with pytest.raises((CheckpointError, OSError)) as caught:
        train(config, run_dir)
    assert "Make room (or give rights) and start again" in str(caught.value)
    assert "No space left" in str(caught.value) or "Free on that disk: 0 bytes" in str(caught.value)
    (small_disk / "ballast").unlink()
    (small_disk / "roomy").touch()
    assert load_trained(run_dir, "last").step == 4
    assert train(config, run_dir).step == 6
    assert load_trained(run_dir, "last").step == 6


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for place in (tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(
            OSError, match=r"can't be written .*; choose another with --run-dir"
        ) as e:
            train(TINY, place)
        assert str(place) in str(e.value)
