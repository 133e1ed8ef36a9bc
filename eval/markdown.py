"""Markdown of measured numbers: what they depend on, and the numbers as a table."""

from collections.abc import Sequence

import jax

from eval.machine import commit, machine


def conditions(command: str, load: float) -> str:
    """Return a list of the command, the commit, the version of JAX, the machine and its load."""
    return (
        f"- Command: `{command}`\n- Commit: `{commit()}`\n- Versions: jax {jax.__version__}\n"
        f"- Machine: {machine()}, {load:.1f} cores busy before"
    )


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table whose first column is aligned to the left and the others to the right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (headings, rule, *rows))
