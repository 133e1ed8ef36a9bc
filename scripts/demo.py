"""The short tour: train on Bach's chorales, score, compose. make demo."""

import time
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from configs.demo import config
from eval.report import likelihood_report, print_likelihood, write_report
from eval.samples import sample_chorales, write_chorales
from longctx.flags import call_with_flags
from longctx.sampling import Sampler
from longctx.train.load import load_trained
from longctx.train.loop import train
from scripts.program import run

NEXT = """Where to look next
  listen        {run}/chorales/*.wav  (scores: .mid, pictures: .png)
  curves        .venv/bin/tensorboard --logdir {run}/tensorboard
  compose more  .venv/bin/python -m scripts.generate {run} --num 8 --out more --top-p 0.95
  from a start  .venv/bin/python -m scripts.generate {run} --out more --primer file.mid
  other models  .venv/bin/python -m scripts.train demo --help
  the real ones .venv/bin/python -m scripts.train jsb_relative --help"""


def tour(
    run_dir: Annotated[Path, tyro.conf.arg(help="Folder of the run.")] = Path("runs/demo"),
    seed: Annotated[int, tyro.conf.arg(help="Of the four chorales.")] = 0,
) -> None:
    """Train a small relative model on Bach's chorales, score it, and let it compose four."""
    console, start = Console(), time.perf_counter()
    console.rule("1  train (Ctrl-C stops; the same command continues)")
    train(config(), run_dir)
    trained = load_trained(run_dir)
    console.rule("2  score")
    report = likelihood_report(trained, ("valid", "test"), window=None, stride=None)
    print_likelihood(report, console)
    write_report(report, run_dir / "likelihood.json")
    console.rule("3  compose")
    chorales = sample_chorales(trained, 4, length=1024, sampler=Sampler(top_p=0.95), seed=seed)
    for line in write_chorales(chorales, run_dir / "chorales", "demo"):
        console.print(line, highlight=False)
    console.rule(f"done in {time.perf_counter() - start:.0f} s")
    console.print(NEXT.format(run=run_dir), highlight=False)


def main(arguments: list[str]) -> None:
    """Give the tour."""
    call_with_flags(tour, arguments, "python -m scripts.demo")


if __name__ == "__main__":
    run(main)
