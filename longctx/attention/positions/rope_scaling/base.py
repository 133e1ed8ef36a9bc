"""What a scaling of RoPE decides: how fast each pair of coordinates turns."""

from typing import ClassVar, Self

import numpy as np
from jaxtyping import Float


class RopeScaling:
    """A frozen dataclass that changes the frequencies, once: the same for all keys of a cache."""

    paper: ClassVar[str] = ""
    """Where it is from, in a few words."""

    @classmethod
    def small(cls) -> tuple[Self, ...]:
        """Return instances at the scale of tests: about 40 tokens, head width 4."""
        return (cls(),)

    @property
    def magnitude(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0

    def frequencies(self, base: float, dim: int) -> Float[np.ndarray, " pairs"]:
        """Return the float64 radians per token of each pair in a head of width `dim`.

        Raises:
            ValueError: the head is too narrow.
        """
        raise NotImplementedError


def unscaled(base: float, dim: int) -> Float[np.ndarray, " pairs"]:
    """Return the frequencies of Su et al. 2021, equation 15: `base^(-2i/dim)`."""
    return base ** (-np.arange(0, dim, 2) / dim)


def rebased(base: float, dim: int, factor: float) -> Float[np.ndarray, " pairs"]:
    """Return those of the base `base * factor^(dim / (dim - 2))`.

    That divides the lowest frequency by `factor` and leaves the highest alone.

    Raises:
        ValueError: the head has one pair only, whose frequency would be both.
    """
    if dim < 4:
        raise ValueError(f"another base for RoPE needs a head width of at least 4, not {dim}")
    return unscaled(base * factor ** (dim / (dim - 2)), dim)
