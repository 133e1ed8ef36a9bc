"""`python -m scripts.train` from its command line to its status."""

import json
import re
import shutil

import pytest

from longctx.train.load import load_trained
from longctx.train.run_folder import RunFolder
from scripts.train import main


def test_without_a_config_the_usage_names_them_all(call):
    ended = call(main)
    assert ended.status == 1
    assert "give the CONFIG first" in ended.err
    assert re.search(r"^  demo +\S.*\.$", ended.out, re.MULTILINE)


def test_help_without_a_config_is_no_error(call):
    ended = call(main, "--help")
    assert (ended.status, ended.err) == (0, "")
    assert "usage: python -m scripts.train CONFIG --run-dir DIR" in ended.out


def test_an_unknown_config_names_the_closest(call, tmp_path):
    ended = call(main, "demmo", "--run-dir", tmp_path)
    assert ended.status == 1
    assert ended.err.strip() == "error: there is no config 'demmo'. Did you mean demo?"


def test_an_unknown_flag_ends_with_status_2_and_names_the_closest(call, tiny, tmp_path):
    ended = call(main, tiny, "--run-dir", tmp_path / "run", "--learning-rate", "1")
    assert ended.status == 2
    assert "--optimizer.learning-rate" in ended.out + ended.err
    assert not (tmp_path / "run").exists()


def test_flags_reach_the_run(trained_run):
    config = RunFolder(trained_run).config()
    assert (config.steps, config.log_every, config.save_every) == (30, 10, 10)
    assert config.evaluators[0].every == 10
    steps = [json.loads(line)["step"] for line in (trained_run / "metrics.jsonl").open()]
    assert steps == [10, 10, 20, 20, 30, 30]
    assert load_trained(trained_run, "last").step == 30


def test_continuing_with_another_flag_is_refused(call, tiny, trained_run):
    ended = call(main, tiny, "--run-dir", trained_run, "--steps", "31")
    assert ended.status == 1
    assert "holds a run of another config" in ended.err
    assert "steps: 31, not 30" in ended.err


def test_a_damaged_checkpoint_is_an_error_without_traceback(call, tiny, trained_run, tmp_path):
    run_dir = shutil.copytree(trained_run, tmp_path / "run")
    shutil.rmtree(run_dir / "checkpoints" / "30" / "state")
    arguments = ["--steps", 30, "--log-every", 10, "--evaluators.0.every", 10, "--save-every", 10]
    ended = call(main, tiny, "--run-dir", run_dir, *arguments)
    assert ended.status == 1
    assert "checkpoint 30" in ended.err
    assert "is damaged" in ended.err


def test_a_run_that_diverges_is_an_error_without_traceback(call, tiny, tmp_path):
    ended = call(main, tiny, "--run-dir", tmp_path, "--optimizer.learning-rate", "1e30")
    assert ended.status == 1
    assert re.search(r"error: step \d+: .*(nan|inf)", ended.err)
    assert "Lower the learning rate" in ended.err


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_a_folder_that_can_not_be_made_is_an_error_without_traceback(call, tiny, tmp_path, place):
    (tmp_path / "file").write_text("")
    ended = call(main, tiny, "--run-dir", tmp_path / place)
    assert ended.status == 1
    assert "choose another with --run-dir" in ended.err


def test_an_interrupt_before_the_first_step_has_status_130(call):
    def interrupted(arguments: list[str]) -> None:
        raise KeyboardInterrupt

    assert call(interrupted).status == 130
