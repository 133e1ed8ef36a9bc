"""What the tokens of a data set mean."""

import hashlib
import json
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int


@runtime_checkable
class Vocabulary(Protocol):
    """Maps pieces of one kind to integer tokens and back.

    Token 0 is the boundary: it stands before the first token of a piece (the input that asks for
    a beginning) and after the last (the end that a model can sample).
    """

    boundary: ClassVar[int] = 0

    @property
    def names(self) -> tuple[str, ...]:
        """A readable name for every token; its length is the vocabulary size."""
        ...

    @property
    def stride(self) -> int:
        """Tokens per step of the representation: pieces are cut only at multiples of it."""
        ...

    def encode(self, piece: Any) -> Int[np.ndarray, " len"]:
        """Return the tokens of a piece, without boundaries.

        Raises:
            ValueError: the piece holds something outside the vocabulary; the text says what and
                where.
        """
        ...

    def decode(self, tokens: Int[np.ndarray, " len"]) -> Any:
        """Return the piece that tokens spell, up to the first boundary after the start.

        Raises:
            ValueError: a token is outside the vocabulary.
        """
        ...


def vocabulary_hash(vocabulary: Vocabulary) -> str:
    """Return 16 hex digits that change whenever a token changes its meaning."""
    text = json.dumps([type(vocabulary).__name__, vocabulary.stride, vocabulary.names])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def of_one_piece(tokens: Int[np.ndarray, " len"], size: int) -> Int[np.ndarray, " shorter"]:
    """Return what stands between a boundary at the start, if there is one, and the next.

    Raises:
        ValueError: a token is outside the vocabulary, which has `size` tokens.
    """
    outside = np.flatnonzero((tokens < 0) | (tokens >= size))
    if outside.size:
        place = int(outside[0])
        raise ValueError(
            f"token {tokens[place]} at place {place} is outside the vocabulary of {size}; was it "
            "made with another vocabulary?"
        )
    tokens = tokens[int(tokens.size > 0 and tokens[0] == 0) :]
    ends = np.flatnonzero(tokens == 0)
    return tokens[: ends[0]] if ends.size else tokens
