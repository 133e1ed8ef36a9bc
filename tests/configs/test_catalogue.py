"""Experiments are found by name or path, and every one of them can be run and explained."""

import re
from pathlib import Path

import pytest

from configs.catalogue import load_config, names
from longctx.train.config import Train
from longctx.train.loop import initialise
from scripts.train import main

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", sorted(names()))
def test_every_experiment_says_what_it_is_and_how_to_run_it(name):
    assert names()[name].endswith(".")
    text = (HERE.parents[1] / "configs" / f"{name}.py").read_text()
    assert "Command:" in text


@pytest.mark.parametrize("name", sorted(names()))
def test_every_experiment_has_a_help(name, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, "--help"])
    assert stop.value.code == 0
    assert "--optimizer.learning-rate" in capsys.readouterr().out


def test_the_demo_builds():
    config = load_config("demo")
    assert int(initialise(config)[2].step) == 0


def test_an_unknown_experiment_names_the_closest():
    with pytest.raises(ValueError, match=r"there is no config 'dem'\. Did you mean demo"):
        load_config("dem")
    with pytest.raises(ValueError, match="there is no config 'catalogue'"):
        load_config("catalogue")


def test_a_path_is_an_experiment():
    assert isinstance(load_config(str(HERE / "tiny.py")), Train)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no config file"),
        ("x = 1\n", r"has no function config\(\)"),
        ("def config():\n    return 3\n", "returns a int, not a Train"),
    ],
)
def test_a_file_that_is_no_experiment_is_refused(tmp_path, content, reason):
    path = tmp_path / "mine.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=reason) as caught:
        load_config(str(path))
    assert re.search(re.escape(str(path)), str(caught.value))
