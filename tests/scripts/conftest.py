"""What the programs' tests share: one tiny trained run, and a program called as from a shell."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from scripts.program import run
from scripts.train import main as train

TINY = Path(__file__).parents[1] / "configs" / "tiny.py"


class Ended(NamedTuple):
    """How a program ended."""

    status: int
    out: str
    err: str


@pytest.fixture
def call(monkeypatch, capsys) -> Callable[..., Ended]:
    """Return a function that runs a program's main function as a shell would.

    An exception that would end in a traceback is raised.
    """

    def call(main: Callable[[list[str]], None], *arguments: object) -> Ended:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
        status = 0
        try:
            run(main)
        except SystemExit as stop:
            status = stop.code
        return Ended(status, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def tiny() -> Path:
    """Return the path of the smallest experiment."""
    return TINY


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory) -> Path:
    """Return the folder of a finished tiny run; tests leave its checkpoints as they are."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(
        [
            *(str(TINY), "--run-dir", str(folder), "--steps", "30", "--log-every", "10"),
            *("--evaluators.0.every", "10", "--save-every", "10"),
        ]
    )
    return folder
