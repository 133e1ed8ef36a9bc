"""A learned embedding for each position, added to the token's (Gehring et al. 2017)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from longctx.attention.positions.base import EmbeddingPlace, Position, require_at_least


@dataclass(frozen=True)
class Learned(Position):
    """Positions 0 ... length - 1 have an embedding each; a longer input is refused.

    Positions are traced values, so one that is given from outside and lies past the table can't
    raise while the model runs: it gives NaN rather than another position's embedding.
    """

    length: int = 512
    """How many positions there are."""

    paper = "Gehring et al. 2017"

    def __post_init__(self):
        require_at_least(self, length=1)

    @classmethod
    def small(cls):
        return (cls(length=64),)

    @property
    def limit(self):
        return self.length

    def in_embedding(self, model, rngs):
        return _Table(self.length, model, rngs)


class _Table(EmbeddingPlace):
    """Sized and scaled like the token embeddings, which are small and multiplied by sqrt(d)."""

    def __init__(self, length: int, model: int, rngs: nnx.Rngs):
        self.table = nnx.Param(jax.random.normal(rngs.params(), (length, model)) * model**-0.5)

    def __call__(self, x, positions):
        index = jnp.maximum(positions, 0)  # padding is -1; its embedding reaches nobody
        place = self.table[...].at[index].get(mode="fill", fill_value=jnp.nan)
        return x + (place * x.shape[-1] ** 0.5).astype(x.dtype)
