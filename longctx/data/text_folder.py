"""Documents that are files in a folder."""

from collections.abc import Iterator
from dataclasses import dataclass

from longctx.data.documents import Document, Documents, find_files, name_in


@dataclass(frozen=True)
class TextFolder(Documents):
    """One document per file; all must be UTF-8: none is passed over in silence."""

    path: str
    """The folder, or a single file."""
    pattern: str = "**/*.txt"
    """Which files of the folder."""

    def documents(self) -> Iterator[Document]:
        """Yield the files in the order of their names.

        Raises:
            ValueError: there is no such folder, no file matches, or one is no UTF-8.
        """
        for file in find_files(self.path, self.pattern):
            try:
                text = file.read_bytes().decode()
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{file} is no UTF-8: byte {error.start} is {error.object[error.start]:#04x}; "
                    "convert the file, or leave it out with another pattern"
                ) from None
            yield Document(name_in(self.path, file), text)
