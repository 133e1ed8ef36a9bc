"""Results of `eval.speed` beside each other: for the terminal, and inside a Markdown file."""

import re
from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.table import Table

from eval.machine import commit, machine
from eval.speed_cases import WITH_TERM, WITHOUT, peer_of
from eval.usage import Result

BEGIN = "<!-- benchmark: begin; written by scripts.benchmark -->"
END = "<!-- benchmark: end -->"
SHORT = {WITH_TERM: "MT", WITHOUT: "GPT", "train-full": "full"}
HEADINGS = (
    "CPU s", "tokens per CPU s", "wall s", "peak GB", "temp GB", "compile s", "load before"
)  # fmt: skip
NARROW_HEADINGS = (
    "CPU\ns", "tokens\n/CPU s", "wall\ns", "peak\nGB", "temp\nGB", "comp.\ns", "load"
)  # fmt: skip


def typical(results: Sequence[Result]) -> list[Result]:
    """Return one run of each case: the one with the median CPU seconds, the lower of two."""
    cases: dict[str, list[Result]] = {}
    for result in results:
        cases.setdefault(result["case"], []).append(result)
    ordered = (sorted(runs, key=lambda run: run["cpu_seconds"]) for runs in cases.values())
    return [runs[(len(runs) - 1) // 2] for runs in ordered]


def speed(result: Result) -> float:
    """Return tokens per CPU second."""
    return result["tokens"] / result["cpu_seconds"]


def ratio(result: Result, results: Sequence[Result]) -> tuple[float, str] | None:
    """Return how often a case is as fast as its peer's in the same run, and the peer's name.

    More than 1 is more tokens per CPU second than the peer. None: there is no peer among the
    results.
    """
    peer = peer_of(result["case"])
    for other in results:
        if other["case"] == peer:
            framework, work, _ = other["case"].split("/")
            ours = result["case"].startswith(f"{framework}/")
            return speed(result) / speed(other), work if ours else framework
    return None


def numbers(result: Result) -> list[str]:
    """Return a result's numbers as texts, in the order of HEADINGS; what it lacks is empty."""
    temp, compiled = result.get("temp_bytes"), result.get("compile_seconds")
    return [
        _text(result["cpu_seconds"]),
        _text(speed(result)),
        _text(result["wall_seconds"]),
        _text(result["peak_bytes"] / 1e9),
        "" if temp is None else _text(temp / 1e9),
        "" if compiled is None else _text(compiled),
        f"{result['load_before']:.1f}",
    ]


def _text(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def terminal_table(results: Sequence[Result]) -> Table:
    """Return a table of at most 80 columns, with a section for each work and size."""
    caption = "x peer: times the peer's tokens per CPU second; " + ", ".join(
        f"{short} = {name}" for name, short in SHORT.items()
    )
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, caption=caption)
    table.add_column("")
    for heading in (*NARROW_HEADINGS, "x\npeer"):
        table.add_column(heading, justify="right", no_wrap=True)
    for section, group in groupby(sorted(results, key=_section), _section):
        table.add_section()
        table.add_row(section, style="bold")
        for result in group:
            compared = ratio(result, results)
            beside = f"{compared[0]:.2f} {SHORT[compared[1]]:3}" if compared else ""
            table.add_row(f" {_model(result)}", *numbers(result), beside)
    return table


def _section(result: Result) -> str:
    _, work, size = result["case"].split("/")
    return f"{work.split('-')[0]} {size}"


def _model(result: Result) -> str:
    framework, work, _ = result["case"].split("/")
    return "-".join([framework, *work.split("-")[1:]])


def markdown(results: Sequence[Result], command: str) -> str:
    """Return the table and what it depends on: command, commit, versions and machine."""
    headings = ["case", *HEADINGS, "times the peer", "peer"]
    lines = [headings, ["---", *["---:"] * (len(HEADINGS) + 1), "---"]]
    for result in sorted(results, key=_section):
        compared = ratio(result, results)
        beside = [f"{compared[0]:.2f}", f"`{compared[1]}`"] if compared else ["", ""]
        lines.append([f"`{result['case']}`", *numbers(result), *beside])
    versions = sorted({f"{k} {v}" for r in results for k, v in r.get("versions", {}).items()})
    return "\n".join(
        [
            f"- Command: `{command}`",
            f"- Commit: `{commit()}`",
            f"- Versions: {', '.join(versions)}",
            f"- Machine: {machine()}",
            "",
            *(f"| {' | '.join(line)} |" for line in lines),
        ]
    )


def insert(text: str, block: str) -> str:
    """Return a text with the block between its markers in place of what was there.

    Raises:
        ValueError: the text does not have the two markers, once each and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"the file needs these two lines, once, for the table:\n{BEGIN}\n{END}")
    pattern = re.escape(BEGIN) + ".*" + re.escape(END)
    return re.sub(pattern, lambda _: f"{BEGIN}\n\n{block}\n\n{END}", text, flags=re.DOTALL)
