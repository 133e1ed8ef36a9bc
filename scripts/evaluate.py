"""Score: python -m scripts.evaluate RUN_DIR [--split valid test] [--window N --stride N]."""

from pathlib import Path

import tyro
from rich.console import Console

from eval.report import likelihood_report, print_likelihood, write_report
from longctx.data.base import Split
from longctx.flags import call_with_flags
from longctx.train.load import Which, load_trained
from scripts.program import run


def evaluate(
    run_dir: tyro.conf.Positional[Path],
    split: tuple[Split, ...] = ("valid", "test"),
    window: int | None = None,
    stride: int | None = None,
    checkpoint: Which = "best",
    out: Path | None = None,
) -> None:
    """Print a run's note-wise likelihood beside trivial baselines, and the protocol.

    Args:
        run_dir: Folder of a training run.
        split: Which pieces.
        window: Tokens that the model sees at most; None is its training window.
        stride: Tokens that a window advances; None is half the window.
        checkpoint: Which one to take.
        out: File for the numbers; None is likelihood.json in the run folder.
    """
    trained = load_trained(run_dir, checkpoint)
    report = likelihood_report(trained, split, window, stride)
    print_likelihood(report, Console())
    write_report(report, out or run_dir / "likelihood.json")


def main(arguments: list[str]) -> None:
    """Evaluate as the command line says."""
    call_with_flags(evaluate, arguments, "python -m scripts.evaluate")


if __name__ == "__main__":
    run(main)
