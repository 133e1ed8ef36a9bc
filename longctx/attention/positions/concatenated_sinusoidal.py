"""Sinusoids beside the token embeddings, then a linear layer (Huang et al. 2018, section 4.1)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from longctx.attention.positions.base import EmbeddingPlace, Position
from longctx.attention.positions.sinusoidal import sinusoids
from longctx.dense import matmul


@dataclass(frozen=True)
class ConcatenatedSinusoidal(Position):
    """`[x, sinusoids] W`: place has entries of its own, and the model mixes them in."""

    width: int = 128
    """How many sines and cosines there are together."""
    base: float = 10_000.0
    """Ratio of the longest wavelength to the shortest."""

    paper = "Huang et al. 2018"

    def __post_init__(self):
        if self.width < 2 or self.width % 2:
            raise ValueError(
                f"ConcatenatedSinusoidal needs a positive even width, not {self.width}"
            )
        if not self.base > 1:
            raise ValueError(f"ConcatenatedSinusoidal needs a base above 1, not {self.base}")

    @classmethod
    def small(cls):
        return (cls(width=6, base=100.0),)

    def in_embedding(self, model, rngs):
        return _Concatenated(self, model, rngs)


class _Concatenated(EmbeddingPlace):
    def __init__(self, config: ConcatenatedSinusoidal, model: int, rngs: nnx.Rngs):
        self.config = config
        inputs = model + config.width
        kernel = jax.random.normal(rngs.params(), (inputs, model)) * inputs**-0.5
        self.kernel = nnx.Param(kernel)

    def __call__(self, x, positions):
        place = sinusoids(positions, self.config.width, self.config.base).astype(x.dtype)
        place = jnp.broadcast_to(place, (*x.shape[:2], place.shape[-1]))
        return matmul(jnp.concatenate([x, place], axis=-1), self.kernel[...].astype(x.dtype))
