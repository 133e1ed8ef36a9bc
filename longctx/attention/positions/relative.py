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

from kernels.attention.lookup import lookup
from kernels.attention.term import DistanceTerm, Entries
from longctx.attention.positions.base import AttentionPlace, Position, require_at_least


@dataclass(frozen=True)
class RelativeEmbedding(Position):
    """Every distance 0 ... max_distance - 1 to an earlier key has an embedding of its own."""

    max_distance: int = 512
    """How many distances are told apart."""
    per_head: bool = True
    """A table for every head, as in Music Transformer; otherwise one shared by the heads."""
    beyond: Literal["clip", "zero"] = "clip"
    """Further keys get the last embedding (clip, Shaw) or none (zero, Tensor2Tensor)."""
    values: bool = False
    """A second table is added to the values (Shaw et al. 2018, equation 3)."""
    two_sided: bool = False
    """Later keys are told apart too, for encoders; otherwise they count as distance 0."""

    paper = "Shaw et al. 2018; Huang et al. 2018"

    def __post_init__(self):
        if self.beyond not in ("clip", "zero"):
            raise ValueError(f"beyond must be 'clip' or 'zero', not {self.beyond!r}")
        require_at_least(self, max_distance=1)

    @classmethod
    def small(cls):
        return (
            cls(max_distance=9),
            cls(max_distance=64),
            cls(max_distance=4, per_head=False, beyond="zero"),
            cls(max_distance=7, values=True),
            cls(max_distance=6, beyond="zero", values=True, two_sided=True),
        )

    @property
    def reads_queries(self):
        return True

    def in_attention(self, heads, dim, rngs):
        return _Tables(self, heads if self.per_head else 1, dim, rngs)


class _Tables(AttentionPlace):
    def __init__(self, config: RelativeEmbedding, tables: int, dim: int, rngs: nnx.Rngs):
        distances = config.max_distance * 2 - 1 if config.two_sided else config.max_distance

        def draw() -> nnx.Param:
            shape = (tables, distances, dim)
            return nnx.Param(jax.random.normal(rngs.params(), shape) * dim**-0.5)

        self.table = draw()
        self.value_table = draw() if config.values else None
        self.config = config

    def term(self) -> "RelativeTerm":
        values = None if self.value_table is None else self.value_table[...]
        return RelativeTerm(self.table[...], self.config.beyond, values, self.config.two_sided)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["table", "value_table"],
    meta_fields=["beyond", "two_sided"],
)
@dataclass(frozen=True)
class RelativeTerm(DistanceTerm):
    """The score term `q . e_distance`, and the value side if there is a table for it.

    Tables list distances from the least up. One-sided, distances below 0 use the entry of 0.
    """

    table: Float[Array, "tables distances dim"]
    beyond: str
    value_table: Float[Array, "tables distances dim"] | None = None
    two_sided: bool = False

    @property
    def adds_values(self):
        return self.value_table is not None

    @property
    def span(self):
        """Each end stands for all distances from there on; with "zero" it has no embedding."""
        none = int(self.beyond == "zero")
        if self.two_sided:
            end = self.table.shape[1] // 2 + none
            return -end, end
        return 0, self.table.shape[1] - 1 + none

    def by_distance(self, distances):
        index = np.clip(distances, *self.span) - self.span[0]
        values = None if self.value_table is None else self._with_ends(self.value_table)
        return Entries(
            embeddings=lookup(self._with_ends(self.table), index),
            values=None if values is None else lookup(values, index),
        )

    def _with_ends(self, table: Array) -> Array:
        if self.beyond == "clip":
            return table
        return jnp.pad(table, [(0, 0), (int(self.two_sided), 1), (0, 0)])
