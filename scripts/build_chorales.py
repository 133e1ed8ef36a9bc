"""Rebuild the embedded chorales from the music21 corpus, and the table of what was left out.

    pip install music21
    python -m scripts.build_chorales

takes about a minute and prints every dropped file with its reason.
"""

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

import music21

from music.chorale_build import Collection, build, corpus_files, npz_bytes

ROOT = Path(__file__).resolve().parents[1]
TABLE_HEAD = "| file | why it is left out |\n|---|---|\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the data file and the table; the defaults are their places in the source tree."""
    parser = argparse.ArgumentParser(description="Rebuild the embedded chorales from music21.")
    parser.add_argument("--out", type=Path, default=ROOT / "music" / "chorales.npz")
    parser.add_argument("--table", type=Path, default=ROOT / "docs" / "chorales.md")
    options = parser.parse_args(arguments)
    collection = build(corpus_files())
    content = npz_bytes(collection.pieces)
    options.out.write_bytes(content)
    write_table(options.table, collection)
    for name, reason in collection.dropped.items():
        print(f"left out {name}: {reason}")
    for split, chorales in collection.pieces.items():
        print(f"{split}: {len(chorales)} chorales, {sum(c.steps for c in chorales):,} steps")
    print(f"music21 {music21.__version__}, {options.out}: {len(content):,} bytes")
    print(f"sha256 {hashlib.sha256(content).hexdigest()}")


def write_table(page: Path, collection: Collection) -> None:
    """Replace the table of left-out files, the end of a page, and keep the text before it.

    Raises:
        ValueError: the page has no such table.
    """
    text, head, _ = page.read_text(encoding="utf-8").partition(TABLE_HEAD)
    if not head:
        raise ValueError(f"{page} has no table that begins with {TABLE_HEAD!r}; add one at its end")
    rows = (f"| `{name}` | {reason} |\n" for name, reason in collection.dropped.items())
    page.write_text(text + head + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
