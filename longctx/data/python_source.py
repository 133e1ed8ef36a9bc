"""The embedded text: the source of the running Python's standard library."""

import platform
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longctx.data.documents import Document, Documents

SKIPPED_FOLDERS = {
    "__pycache__",
    "dist-packages",
    "idle_test",
    "site-packages",
    "test",
    "tests",
}
"""What was installed later, and tests, which are much of the library and repeat themselves."""


@dataclass(frozen=True)
class PythonSource(Documents):
    """One document per file of the standard library: long files, which refer far back.

    Every Python has its own: another version, or a distribution that leaves `idlelib` out, gives
    other data, and numbers are comparable only where the manifest's hash is the same. Tests, what
    was installed later, files that describe the build, and files that are no UTF-8 are left out.

    Files of one top-level package or module are never in two splits; the shares are of those.
    """

    def documents(self) -> Iterator[Document]:
        """Yield the files in the order of their paths.

        Raises:
            ValueError: this Python came without its source.
        """
        root = Path(sysconfig.get_path("stdlib"))
        files = [file for file in sorted(root.rglob("*.py")) if _is_source(file, root)]
        if not files:
            raise ValueError(
                f"{root} holds no Python source; use a Python that is not frozen or zipped, or "
                "TextFolder with texts of your own"
            )
        for file in files:
            try:
                text = file.read_bytes().decode()
            except UnicodeDecodeError:
                continue
            yield Document(file.relative_to(root).as_posix(), text)

    def group(self, document: Document) -> str:
        """Return the name of the top-level package or module."""
        return document.name.partition("/")[0].removesuffix(".py")

    def manifest(self) -> dict[str, str]:
        """Return the version of Python, the number of files, and a hash over all."""
        return {"python": platform.python_version(), **super().manifest()}


def _is_source(file: Path, root: Path) -> bool:
    parts = file.relative_to(root).parts
    of_build = parts[0].startswith(("_sysconfigdata", "config-")) or parts[0] == "sitecustomize.py"
    return file.is_file() and not of_build and SKIPPED_FOLDERS.isdisjoint(parts[:-1])
