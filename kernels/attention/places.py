"""Where tokens stand: what decides, besides content, which pairs talk and what a pair scores."""

from typing import NamedTuple

from jax import Array
from jaxtyping import Int


class Places(NamedTuple):
    """Each token's place; `rows` is the batch or 1, and every part may be missing."""

    positions: Int[Array, "rows len"] | None = None
    """Rise by one per token of a document; -1 is padding or an empty slot, which nobody sees.

    None: documents start at 0 and tokens are consecutive, which lets a kernel know distances while
    compiling.
    """
    segments: Int[Array, "rows len"] | None = None
    """The document of each token, where several are packed into a row; None is one document."""
    coordinates: Int[Array, "rows len axes"] | None = None
    """What else places a token, e.g. its onset and its pitch; the tokenizer knows."""
