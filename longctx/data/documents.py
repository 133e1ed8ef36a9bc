"""Data sets of texts: read once, tokenized to small arrays, split by content."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from longctx.data.base import SPLITS, DataConfig, Split
from longctx.data.tokenizers import Bytes, Tokenizer

Tokens = Int[np.ndarray, " len"]


class Document(NamedTuple):
    """A text as its source holds it."""

    name: str
    """Where it lies inside the source: for the manifest, and for people to find it."""
    text: str


class _Encoded(NamedTuple):
    digest: str
    name: str
    split: Split
    tokens: Tokens


@dataclass(frozen=True, kw_only=True)
class Documents(DataConfig):
    """Texts from somewhere; empty ones are dropped.

    A document's split is decided by a hash of what it says, so neither new names, nor another
    order, nor further documents move it, and copies of one text never lie in two splits.
    """

    tokenizer: Tokenizer = Bytes()
    """How text becomes tokens."""
    valid_share: float = 0.05
    """The share of documents to validate on; by their number, not their length."""
    test_share: float = 0.05
    """The share of documents to test on."""

    def __post_init__(self):
        shares = self.valid_share, self.test_share
        if min(shares) < 0 or sum(shares) >= 1:
            raise ValueError(
                f"valid_share and test_share are {shares[0]} and {shares[1]}; wanted none below 0 "
                "and a sum below 1, which leaves something to train on"
            )

    @abstractmethod
    def documents(self) -> Iterator[Document]:
        """Yield all texts.

        Raises:
            ValueError: the source is not there, or something in it can't be read.
        """

    def group(self, document: Document) -> str:
        """Return what decides the split: documents with equal groups are never in two splits."""
        return document.text

    def vocabulary(self) -> Tokenizer:
        """Return the tokenizer."""
        return self.tokenizer

    def sequences(self, split: Split) -> tuple[Tokens, ...]:
        """Return the tokens of the documents of one split, in the order of their hashes.

        They are read at the first call and kept, two bytes a token where the vocabulary allows.

        Raises:
            ValueError: there is no such split, or the source can't be read.
        """
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}; wanted one of {', '.join(SPLITS)}")
        return tuple(document.tokens for document in self._encoded if document.split == split)

    def manifest(self) -> dict[str, str]:
        """Return the number of documents and a hash over the names and contents of all."""
        named = sorted((document.name, document.digest) for document in self._encoded)
        lines = "".join(f"{name}\0{digest}\n" for name, digest in named)
        return {
            "documents": str(len(named)),
            "sha256": hashlib.sha256(lines.encode()).hexdigest(),
        }

    @cached_property
    def _encoded(self) -> list[_Encoded]:
        small = len(self.tokenizer.names) <= 1 << 15
        found = []
        for document in self.documents():
            try:
                tokens = self.tokenizer.encode(document.text)
            except ValueError as error:
                raise ValueError(f"{document.name}: {error}") from None
            if len(tokens):
                digest = hashlib.sha256(document.text.encode()).hexdigest()
                tokens = tokens.astype(np.int16 if small else np.int32)
                found.append(_Encoded(digest, document.name, self._split(document), tokens))
        if not found:
            raise ValueError(f"{self} holds no text: every document is empty")
        return sorted(found, key=lambda document: document[:2])

    def _split(self, document: Document) -> Split:
        digest = hashlib.sha256(self.group(document).encode()).digest()
        place = int.from_bytes(digest[:8], "big") / 2**64
        if place < self.valid_share:
            return "valid"
        return "test" if place < self.valid_share + self.test_share else "train"


def find_files(path: str, pattern: str) -> list[Path]:
    """Return the file `path`, or the files that match in the folder `path`, in order.

    Raises:
        ValueError: there is nothing at `path`, or no file matches.
    """
    root = Path(path)
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise ValueError(f"there is nothing at {path}; give a file or a folder")
    files = sorted(file for file in root.glob(pattern) if file.is_file())
    if not files:
        raise ValueError(f"no file in {path} matches {pattern!r}; give another pattern")
    return files


def name_in(path: str, file: Path) -> str:
    """Return a file's name inside the source `path`, the same wherever the source lies."""
    root = Path(path)
    return file.name if root.is_file() else file.relative_to(root).as_posix()
