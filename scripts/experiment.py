"""Run a small experiment: python -m scripts.experiment recall --out runs/recall."""

from pathlib import Path

import tyro

from eval.experiments.base import Experiment, rows, run_one
from eval.experiments.context import ContextExperiment
from eval.experiments.recall import RecallExperiment
from eval.markdown import table
from longctx.variants import did_you_mean
from scripts.program import run

EXPERIMENTS: dict[str, type[Experiment]] = {
    "recall": RecallExperiment,
    "context": ContextExperiment,
}


def experiment(
    name: tyro.conf.Positional[str],
    out: Path,
    seeds: tuple[int, ...] = (0, 1, 2),
    variants: tuple[str, ...] = (),
) -> None:
    """Train every variant with every seed, measure it, and print a table with 95 % intervals.

    What is done already is not done again, and a run that was stopped goes on.

    Args:
        name: Which experiment: recall or context.
        out: The folder of its runs.
        seeds: Of the weights, the order of the data and the crops.
        variants: Only these.
    """
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment {name!r}. {did_you_mean(name, list(EXPERIMENTS))}")
    chosen = EXPERIMENTS[name]()
    measured = {
        variant: [run_one(chosen, variant, seed, out) for seed in seeds]
        for variant in variants or chosen.variants()
    }
    headings = ["", *next(iter(measured.values()))[0]]
    text = table(headings, rows(measured))
    (out / "results.md").write_text(text + "\n")
    print(f"\n{text}")


def main(arguments: list[str]) -> None:
    """Run what the command line says."""
    tyro.cli(experiment, args=arguments, prog="python -m scripts.experiment")


if __name__ == "__main__":
    run(main)
