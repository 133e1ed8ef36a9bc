"""Sinusoids added to the token embeddings (Vaswani et al. 2017, section 3.5)."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from longctx.attention.positions.base import EmbeddingPlace, Position


@dataclass(frozen=True)
class Sinusoidal(Position):
    """`sin(pos / base^(2i/d))` beside `cos(pos / base^(2i/d))`, any length."""

    base: float = 10_000.0
    """Ratio of the longest wavelength to the shortest."""

    paper = "Vaswani et al. 2017"

    def __post_init__(self):
        if not self.base > 1:
            raise ValueError(f"Sinusoidal needs a base above 1, not {self.base}")

    def in_embedding(self, model, rngs):
        if model % 2:
            raise ValueError(f"Sinusoidal needs an even model width, not {model}")
        return _Sinusoids(self.base)


class _Sinusoids(EmbeddingPlace):
    def __init__(self, base: float):
        self.base = base

    def __call__(self, x, positions):
        return x + sinusoids(positions, x.shape[-1], self.base).astype(x.dtype)


def sinusoids(
    positions: Int[Array, "rows len"], width: int, base: float
) -> Float[Array, "rows len width"]:
    """Return the float32 sines, then the cosines, of `width / 2` wavelengths."""
    frequencies = base ** (-2 * np.arange(width // 2) / width)
    phases = positions[..., None].astype(jnp.float32) * frequencies.astype(np.float32)
    return jnp.concatenate([jnp.sin(phases), jnp.cos(phases)], axis=-1)
