"""Compile for accelerators that are not here: python -m scripts.compile --target tpu-v6e h200."""

import json as json_lines
from dataclasses import replace
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from configs.catalogue import load_config
from eval.compiled.cases import GenerateCase, TrainCase, named_cases
from eval.compiled.process import compile_for
from eval.compiled.static_costs import record_all
from eval.compiled.table import tables
from kernels.targets import TARGETS
from scripts.program import run

What = Literal["kernels", "train", "generate"]


def compile(
    target: tuple[str, ...],
    what: What = "kernels",
    config: str = "demo",
    batch: int | None = None,
    cases: tuple[str, ...] = (),
    json: Path | None = None,
    record: bool = False,
) -> None:
    """Compile programs without the hardware and print what they cost, which no run blurs.

    Args:
        target: Accelerators: tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu-7x a100 h100 h200.
        what: Attention kernels beside their peers, or one step of an experiment.
        config: The experiment that is trained or generates: a name in configs/, or a file.
        batch: Rows, instead of the experiment's; what is left for each device of several.
        cases: Only those kernels whose name contains one of these words, e.g. relative/128/4096.
        json: A file for everything that was found, a line for each program.
        record: Also keep the costs in eval/static_costs.json, which the tests compare with.
    """
    console, records = Console(highlight=False), []
    for name in target:
        if name not in TARGETS:
            raise ValueError(f"there is no target {name!r}; there are {', '.join(TARGETS)}")
        chosen = _chosen(what, config, batch, cases, TARGETS[name].platform)
        found = []
        for number, result in enumerate(compile_for(name, chosen), 1):
            said = f"{result['seconds']:.1f} s" if result["ok"] else f"refused: {result['reason']}"
            print(f"{name} {number}/{len(chosen)} {result['case']}, {said}", flush=True)
            found.append(result)
        console.print(f"\n{name}", style="bold")
        for table in tables(found, TARGETS[name].platform):
            console.print(table)
        records += found
    if json:
        json.write_text("".join(json_lines.dumps(record) + "\n" for record in records))
    if record:
        record_all(records)
    refused = [f"{r['case']} on {r['target']}" for r in records if not r["ok"]]
    if refused:
        raise ValueError(f"{len(refused)} of {len(records)} were refused: {', '.join(refused)}")


def _chosen(what: What, config: str, batch: int | None, words: tuple[str, ...], platform: str):
    if what != "kernels":
        train = load_config(config)
        train = replace(train, batch=batch or train.batch)
        return [(TrainCase if what == "train" else GenerateCase)(config, train)]
    return named_cases(platform, words)


def main(arguments: list[str]) -> None:
    """Compile what the command line says."""
    options = (tyro.conf.FlagCreatePairsOff,)
    tyro.cli(compile, args=arguments, prog="python -m scripts.compile", config=options)


if __name__ == "__main__":
    run(main)
