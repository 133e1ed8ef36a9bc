"""Numbers beside their controls: the table and the file of a likelihood evaluation."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eval.baselines import baselines
from eval.likelihood import Likelihood
from longctx.data.base import Split
from longctx.evaluator import Trained

CONTROLS = {
    "uniform": "uniform",
    "unigram": "unigram per voice",
    "copy_else_bigram": "copy this voice's last step, else bigram",
    "beat_copy_else_bigram": "the same, by place in the beat",
}


def likelihood_report(
    trained: Trained, splits: tuple[Split, ...], window: int | None, stride: int | None
) -> dict[str, Any]:
    """Return each split's note-wise likelihood (nats per token), its controls and its protocol."""
    report: dict[str, Any] = {"step": trained.step, "splits": {}}
    for split in splits:
        likelihood = Likelihood(split=split, window=window, stride=stride)
        report["splits"][split] = {
            "model": dict(likelihood.run(trained))[f"{split}/nll"],
            "controls": baselines(trained.data, split),
            "protocol": likelihood.protocol(trained),
        }
    return report


def print_likelihood(report: dict[str, Any], console: Console) -> None:
    """Print the table, the best control marked by its distance to the model, and the protocol."""
    splits = report["splits"]
    table = Table(title="negative log-likelihood, nats per token", title_justify="left")
    table.add_column("")
    for split in splits:
        table.add_column(split, justify="right")
    for name, text in CONTROLS.items():
        table.add_row(text, *(f"{splits[s]['controls'][name]:.4f}" for s in splits))
    table.add_section()
    model = [f"{splits[s]['model']:.4f}" for s in splits]
    table.add_row(f"model at step {report['step']}", *model, style="bold")
    console.print(table)
    for split in splits:
        protocol = "; ".join(
            f"{k} {v}" for k, v in splits[split]["protocol"].items() if k != "unit"
        )
        console.print(protocol, highlight=False, style="dim")


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write the report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n")
