"""Documents that are rows of Parquet files."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longctx.data.documents import Document, Documents, find_files, name_in
from longctx.data.extras import import_extra


@dataclass(frozen=True)
class Parquet(Documents):
    """One document per row, read a thousand rows at a time; nulls are empty documents.

    Needs the extra `text`.
    """

    path: str
    """A file, or a folder."""
    column: str = "text"
    """The column that is the text."""
    pattern: str = "**/*.parquet"
    """Which files, if the path is a folder."""

    def documents(self) -> Iterator[Document]:
        """Yield the rows, file after file.

        Raises:
            ValueError: there is no such file, it is no Parquet, or lacks a column of strings.
        """
        library = import_extra("pyarrow.parquet", "text")
        for file in find_files(self.path, self.pattern):
            with file.open("rb") as opened:
                rows = self._open(library, file, opened).iter_batches(1000, columns=[self.column])
                texts = (text for part in rows for text in part.column(0).to_pylist())
                for number, text in enumerate(texts):
                    yield Document(f"{name_in(self.path, file)}:{number}", text or "")

    def _open(self, library: Any, file: Path, opened: Any) -> Any:
        try:
            table = library.ParquetFile(opened)
        except (ValueError, OSError) as error:  # pyarrow's own errors are among these
            raise ValueError(f"{file} is no Parquet file: {error}") from None
        columns = {field.name: str(field.type) for field in table.schema_arrow}
        if columns.get(self.column) not in ("string", "large_string", "string_view"):
            raise ValueError(
                f"{file} has no column {self.column!r} of strings, it has {columns}; "
                "name another column"
            )
        return table
