"""Compile for accelerators that are not here: python -m scripts.compile --target tpu-v6e h200."""

import json as json_lines
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from configs.catalogue import load_config
from eval.compiled.cases import Case, GenerateCase, TrainCase, kernel_cases
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
    cases: tuple[str, ...] = (),
    json: Path | None = None,
    record: bool = False,
) -> None:
    """Compile programs without the hardware and print what they cost, which no run blurs.

    Args:
        target: Accelerators: tpu-v4 tpu-v5e tpu-v5p tpu-v6e tpu-7x a100 h100 h200.
        what: Attention kernels beside their peers, or one step of an experiment.
        config: The experiment that is trained or generates: a name in configs/, or a file.
        cases: Only those kernels whose name contains one of these words, e.g. relative/128/4096.
        json: A file for everything that was found, a line for each program.
        record: Also keep the costs in eval/static_costs.json, which the tests compare with.
    """
    console, records = Console(highlight=False), []
    for name in target:
        if name not in TARGETS:
            raise ValueError(f"there is no target {name!r}; there are {', '.join(TARGETS)}")
        chosen = _chosen(what, config, cases, TARGETS[name].platform)
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
        json.write_text("".join(json_lines.dumps(result) + "\n" for result in records))
    if record:
        record_all(records)
    refused = [f"{r['case']} on {r['target']}" for r in records if not r["ok"]]
    if refused:
        raise ValueError(f"{len(refused)} of {len(records)} were refused: {', '.join(refused)}")


def _chosen(what: What, config: str, words: tuple[str, ...], platform: str) -> list[Case]:
    if what != "kernels":
        return [{"train": TrainCase, "generate": GenerateCase}[what](config, load_config(config))]
    cases = kernel_cases(platform)
    found = [case for case in cases if not words or any(word in case.name for word in words)]
    if not found:
        raise ValueError(f"no case contains {words}; there are {', '.join(c.name for c in cases)}")
    return found


def main(arguments: list[str]) -> None:
    """Compile what the command line says."""
    options = (tyro.conf.FlagCreatePairsOff,)
    tyro.cli(compile, args=arguments, prog="python -m scripts.compile", config=options)


if __name__ == "__main__":
    run(main)
