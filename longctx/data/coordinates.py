"""Where a token stands besides its number in the piece: its time, its pitch, as music counts."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from longctx.data.vocabulary import Vocabulary


@runtime_checkable
class Coordinates(Protocol):
    """What a vocabulary adds if it knows more of a token's place."""

    @property
    def axes(self) -> tuple[str, ...]:
        """A word for each coordinate."""
        ...

    def coordinates(self, tokens: Any, positions: Any) -> Any:
        """Return the integer coordinates, one more axis, of tokens at positions in their pieces.

        The rule knows one token and its position alone, and takes arrays of numpy and jax alike, so
        that a token has the coordinates in training that it gets when it is sampled. The boundary
        has position 0.
        """
        ...


def coordinates_of(
    vocabulary: Vocabulary, tokens: Int[np.ndarray, "*shape"], positions: Int[np.ndarray, "*shape"]
) -> Int[np.ndarray, "*shape axes"] | None:
    """Return what the vocabulary says of tokens at these positions; None if it has no rule."""
    if not isinstance(vocabulary, Coordinates):
        return None
    return vocabulary.coordinates(tokens, positions).astype(np.int32)


def rule_for(axes: int, vocabulary: Vocabulary) -> Coordinates | None:
    """Return the vocabulary's rule for a network that reads `axes` coordinates; None for 0.

    Raises:
        ValueError: the vocabulary has no rule, or one with another number of coordinates.
    """
    if axes == 0:
        return None
    supplied = vocabulary.axes if isinstance(vocabulary, Coordinates) else ()
    if not isinstance(vocabulary, Coordinates) or len(supplied) != axes:
        raise ValueError(
            f"the network reads {axes} coordinates of each token, but {type(vocabulary).__name__} "
            f"supplies {', '.join(supplied) or 'none'}: take another position scheme, or give the "
            "vocabulary `axes` and a rule `coordinates`"
        )
    return vocabulary
