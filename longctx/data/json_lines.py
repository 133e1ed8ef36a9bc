"""Documents that are lines of JSON."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longctx.data.documents import Document, Documents, find_files, name_in


@dataclass(frozen=True)
class JsonLines(Documents):
    """One document per line, each a JSON object; blank lines are passed over."""

    path: str
    """A file, or a folder."""
    field: str = "text"
    """The entry of each object that is the text."""
    pattern: str = "**/*.jsonl"
    """Which files, if the path is a folder."""

    def documents(self) -> Iterator[Document]:
        """Yield the lines, file after file.

        Raises:
            ValueError: there is no such file, or a line is no object with a text in that field.
        """
        for file in find_files(self.path, self.pattern):
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        name = f"{name_in(self.path, file)}:{number}"
                        yield Document(name, self._text(file, number, line))

    def _text(self, file: Path, number: int, line: bytes) -> str:
        try:
            content = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{file}:{number} is no JSON: {error}; mend the line") from None
        if not isinstance(content, dict) or not isinstance(content.get(self.field), str):
            given = sorted(content) if isinstance(content, dict) else type(content).__name__
            raise ValueError(
                f"{file}:{number} has no text in the field {self.field!r}, it has {given}; "
                "wanted an object with a string there: name another field, or mend the line"
            )
        return content[self.field]
