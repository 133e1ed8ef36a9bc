"""Keep the README's table of variants true: python -m scripts.variants [--write True]."""

from pathlib import Path

from eval.variant_table import table
from longctx.flags import call_with_flags
from scripts.program import run

README = Path(__file__).parents[1] / "README.md"
START, END = "<!-- variants -->\n", "<!-- /variants -->"


def with_table(text: str) -> str:
    """Return a README's text with the table between its two markers.

    Raises:
        ValueError: a marker is missing.
    """
    if START not in text or END not in text:
        raise ValueError(f"the README needs the lines {START.strip()} and {END} around its table")
    before, rest = text.split(START, 1)
    return before + START + table() + END + rest.split(END, 1)[1]


def main(arguments: list[str]) -> None:
    """Print the table, or write it into the README."""

    def show(write: bool = False) -> None:
        """Print the table of variants.

        Args:
            write: Put it into the README.
        """
        if write:
            README.write_text(with_table(README.read_text()))
        else:
            print(table(), end="")

    call_with_flags(show, arguments, "python -m scripts.variants")


if __name__ == "__main__":
    run(main)
