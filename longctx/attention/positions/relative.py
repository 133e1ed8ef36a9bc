"""Learned relative embeddings `q_i . e_{i-j}` (Shaw et al. 2018; Music Transformer, Huang 2018)."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float

from kernels.attention.term import DistanceTerm, Entries
from longctx.attention.positions.base import AttentionPlace, Position


@dataclass(frozen=True)
class RelativeEmbedding(Position):
    """Every distance 0 ... max_distance - 1 to an earlier key has an embedding of its own."""

    max_distance: int = 512
    """How many distances are told apart."""
    per_head: bool = True
    """A table for every head, as in Music Transformer; otherwise one shared by the heads."""
    beyond: Literal["clip", "zero"] = "clip"
    """Further keys get the last embedding (clip, Shaw) or none (zero, Tensor2Tensor)."""

    def __post_init__(self):
        if self.max_distance < 1:
            raise ValueError(
                f"RelativeEmbedding needs a max_distance of at least 1, not {self.max_distance}"
            )

    def in_attention(self, heads, dim, rngs):
        return _Table(self, heads if self.per_head else 1, dim, rngs)


class _Table(AttentionPlace):
    def __init__(self, config: RelativeEmbedding, tables: int, dim: int, rngs: nnx.Rngs):
        shape = (tables, config.max_distance, dim)
        self.table = nnx.Param(jax.random.normal(rngs.params(), shape) * dim**-0.5)
        self.beyond = config.beyond

    def term(self) -> "RelativeTerm":
        return RelativeTerm(self.table[...], self.beyond)


@partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=["beyond"])
@dataclass(frozen=True)
class RelativeTerm(DistanceTerm):
    """The score term `q . e_distance`; distances below 0 use the embedding of 0."""

    table: Float[Array, "tables distances dim"]
    beyond: str

    def _padded(self) -> Array:
        """Return the table with one more entry, for all distances from its length on."""
        last = self.table[:, -1:] if self.beyond == "clip" else jnp.zeros_like(self.table[:, :1])
        return jnp.concatenate([self.table, last], axis=1)

    @property
    def span(self):
        return 0, self.table.shape[1]

    def by_distance(self, distances):
        return Entries(embeddings=self._padded()[:, np.clip(distances, *self.span)])
