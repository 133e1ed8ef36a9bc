"""What all vocabularies of text share: the boundary comes first, the tokenizer's own ids follow."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int, Int32

from longctx.data.vocabulary import of_one_piece


@dataclass(frozen=True)
class Tokenizer(ABC):
    """A vocabulary of text: token 0 is the boundary, token i + 1 is what the tokenizer calls i.

    So every id of a tokenizer keeps its meaning, whichever it uses for its own beginnings and ends.
    """

    boundary: ClassVar[int] = 0
    stride: ClassVar[int] = 1

    @cached_property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """A readable name for every token; the boundary's tells a tokenizer from all others."""

    @abstractmethod
    def ids(self, text: str) -> Sequence[int] | Int[np.ndarray, " len"]:
        """Return the tokenizer's own ids of a text that UTF-8 can spell."""

    @abstractmethod
    def text(self, ids: Int[np.ndarray, " len"]) -> str:
        """Return what the tokenizer's own ids spell; bytes that are no UTF-8 become U+FFFD."""

    def encode(self, piece: str) -> Int32[np.ndarray, " len"]:
        """Return the tokens of a text, without boundaries.

        Raises:
            ValueError: the text holds a lone surrogate, or what the tokenizer can't spell.
        """
        try:
            piece.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"character {error.start} is {piece[error.start]!r}, half of a surrogate pair, "
                "which no encoding can spell; replace it"
            ) from None
        return np.asarray(self.ids(piece), np.int32) + 1

    def decode(self, tokens: Int[np.ndarray, " len"]) -> str:
        """Return the text that tokens spell, up to the first boundary after the start.

        Raises:
            ValueError: a token is outside the vocabulary.
        """
        return self.text(of_one_piece(np.asarray(tokens), len(self.names)).astype(np.int32) - 1)


def read_local(path: str) -> bytes:
    """Return the content of a tokenizer's file.

    Raises:
        FileNotFoundError: it is not there; nothing is ever downloaded.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"there is no tokenizer file {path}; give a file on this machine: none is downloaded"
        )
    return Path(path).read_bytes()
