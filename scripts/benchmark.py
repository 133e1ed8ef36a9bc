"""Measure speed and memory: python -m scripts.benchmark [--cases WORD ...] [--out FILE.md]."""

import importlib.util
import json as json_lines
import re
import shlex
import sys
from pathlib import Path

import tyro
from rich.console import Console

from eval.speed import CASES, run_cases
from eval.speed_cases import SLOW
from eval.speed_table import BEGIN, END, insert, markdown, terminal_table, typical
from scripts.program import run

WITHOUT_PEERS = (
    "The PyTorch peers are left out, because this Python has no torch. To have them: python -m pip "
    "install torch jaxtyping numpy, in any environment, and give its Python as --torch-python."
)


def benchmark(
    cases: tuple[str, ...] = (),
    torch_python: Path | None = None,
    repeats: int = 1,
    out: Path | None = None,
    json: Path | None = None,
    slow: bool = False,
) -> None:
    """Measure every case in a fresh process and print a table; the longest take minutes.

    Args:
        cases: Only those whose name contains one of these words.
        torch_python: A Python that has torch, for the peers.
        repeats: Processes a case, in turns; the one with the median CPU seconds is shown.
        out: A Markdown file with the markers of the table; made if absent.
        json: A file for every result, all repeats.
        slow: Also what takes minutes: the generation of the peer that has no cache.
    """
    if repeats < 1:
        raise ValueError(f"--repeats must be at least 1, not {repeats}")
    text = out.read_text() if out and out.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    insert(text, "")  # complains now rather than at the end
    names = [n for n in CASES if not cases or any(word in n for word in cases)]
    names = [n for n in names if slow or not n.startswith(SLOW)]
    torch = str(torch_python.absolute() if torch_python else sys.executable)
    if torch_python is None and importlib.util.find_spec("torch") is None:
        names = [n for n in names if not n.startswith("torch")]
        print(WITHOUT_PEERS)
    if not names:
        raise ValueError(f"no case is left for {cases}; there are {', '.join(CASES)}")
    results, failures = run_cases(names, repeats, torch)
    shown = typical(results)
    Console().print(terminal_table(shown))
    if json and shown:
        json.write_text("".join(json_lines.dumps(result) + "\n" for result in results))
    if out and shown:
        words = [re.sub(r"(^|=)/\S*/", r"\1", word) for word in sys.argv[1:]]  # no machine's paths
        command = shlex.join(["python", "-m", "scripts.benchmark", *words])
        out.write_text(insert(text, markdown(shown, command)))
    if failures:
        sys.exit(f"failed: {', '.join(failures)}")


def main(arguments: list[str]) -> None:
    """Measure what the command line says."""
    options = (tyro.conf.FlagCreatePairsOff,)
    tyro.cli(benchmark, args=arguments, prog="python -m scripts.benchmark", config=options)


if __name__ == "__main__":
    run(main)
