"""Families of variants: one file each, found by looking into the folder."""

import difflib
import importlib
import pkgutil


def load_variants(package: str) -> None:
    """Import every module of a package, so that the variants in its files are defined."""
    module = importlib.import_module(package)
    for found in pkgutil.iter_modules(module.__path__):
        importlib.import_module(f"{package}.{found.name}")


def did_you_mean(given: str, known: list[str]) -> str:
    """Return a sentence that names the closest known words, or all of them."""
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Known: {', '.join(sorted(known))}."
