"""What a step of training or evaluation takes."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Batch(NamedTuple):
    """Token windows for next-token prediction; padding has weight 0."""

    tokens: Int[np.ndarray, "batch len"]
    targets: Int[np.ndarray, "batch len"]
    weights: Float[np.ndarray, "batch len"]
    segments: Int[np.ndarray, "batch len"] | None = None
    """The document of each token where several are packed into a row: 0, 1, ...; -1 is padding."""
    coordinates: Int[np.ndarray, "batch len axes"] | None = None
    """What the vocabulary says of each token's place besides its number, if it has a rule."""
