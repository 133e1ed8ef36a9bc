"""Small experiments: the same training for each variant and seed, then a table with intervals."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import stats

from longctx.evaluator import Trained
from longctx.train.config import Train
from longctx.train.loop import train
from longctx.train.run_folder import replace_text


class Experiment(ABC):
    """A question, the variants that answer it, and what is measured of each."""

    @abstractmethod
    def variants(self) -> dict[str, Train]:
        """Return the run of each variant; seeds are set by who runs them."""

    @abstractmethod
    def measure(self, trained: Trained) -> dict[str, float]:
        """Return the named numbers of a trained model."""


def run_one(experiment: Experiment, variant: str, seed: int, folder: Path) -> dict[str, float]:
    """Train one variant with one seed, or go on, and return what is measured; kept in a file.

    Raises:
        ValueError: there is no such variant.
    """
    variants = experiment.variants()
    if variant not in variants:
        raise ValueError(f"there is no variant {variant!r}; there are {', '.join(variants)}")
    place = folder / variant / f"seed{seed}"
    found = place / "measured.json"
    if found.exists():
        return json.loads(found.read_text())
    trained = train(replace(variants[variant], seed=seed), place)
    measured = experiment.measure(trained)
    replace_text(found, json.dumps(measured, indent=2) + "\n")
    return measured


def interval(values: list[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95 % interval by Student's t over seeds."""
    if len(values) < 2:
        return float(np.mean(values)), float("nan")
    width = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return float(np.mean(values)), float(width)


def rows(measured: Mapping[str, list[dict[str, float]]]) -> list[list[str]]:
    """Return a row for each variant: its name, and `mean ± half width` of each number."""
    table = []
    for variant, runs in measured.items():
        cells = []
        for name in runs[0]:
            mean, width = interval([run[name] for run in runs])
            cells.append(f"{mean:.3f} ± {width:.3f}")
        table.append([variant, *cells])
    return table
