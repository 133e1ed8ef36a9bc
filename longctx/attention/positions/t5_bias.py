"""A learned bias for each bucket of distances (Raffel et al. 2020, T5, section 2.1)."""

from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float, Int

from kernels.attention.lookup import lookup
from kernels.attention.term import DistanceTerm, Entries
from longctx.attention.positions.base import AttentionPlace, Position, require_at_least


@dataclass(frozen=True)
class T5Bias(Position):
    """Near distances have a bucket each; further ones share buckets that widen like a logarithm.

    Each layer has a table of its own, where T5 shares one.
    """

    buckets: int = 32
    """How many biases each head has."""
    max_distance: int = 128
    """From here on all distances share the last bucket."""
    two_sided: bool = False
    """Half of the buckets are for later keys, for encoders; otherwise they count as distance 0."""

    paper = "Raffel et al. 2020"

    def __post_init__(self):
        require_at_least(self, buckets=4 if self.two_sided else 2)
        if self.two_sided and self.buckets % 2:
            raise ValueError(
                f"two-sided T5Bias needs an even number of buckets, not {self.buckets}"
            )
        require_at_least(self, max_distance=self.exact + 1)

    @classmethod
    def small(cls):
        return cls(buckets=8, max_distance=20), cls(buckets=10, max_distance=9, two_sided=True)

    @property
    def exact(self) -> int:
        """How many distances, from 0 up, have a bucket each."""
        return self.buckets // (4 if self.two_sided else 2)

    def bucket(self, distances: Int[np.ndarray, " distances"]) -> Int[np.ndarray, " distances"]:
        """Return the bucket of each distance `q_pos - k_pos`."""
        side = self.buckets // 2 if self.two_sided else self.buckets
        far = np.abs(distances) if self.two_sided else np.maximum(distances, 0)
        growth = np.log(np.maximum(far, self.exact) / self.exact)
        steps = growth / np.log(self.max_distance / self.exact) * (side - self.exact)
        # The nudge keeps rounding from moving distances that are exactly a bucket's first.
        shared = self.exact + np.floor(steps + 1e-9).astype(int)
        found = np.where(far < self.exact, far, np.minimum(shared, side - 1))
        return found + np.where(distances < 0, side, 0) if self.two_sided else found

    def in_attention(self, heads, dim, rngs):
        return _Biases(self, heads, rngs)


class _Biases(AttentionPlace):
    def __init__(self, config: T5Bias, heads: int, rngs: nnx.Rngs):
        self.table = nnx.Param(0.02 * jax.random.normal(rngs.params(), (heads, config.buckets)))
        self.config = config

    def term(self) -> "T5Term":
        return T5Term(self.table[...], self.config)


@partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=["config"])
@dataclass(frozen=True)
class T5Term(DistanceTerm):
    """The score term `b[bucket of the distance]`."""

    table: Float[Array, "heads buckets"]
    config: T5Bias

    @property
    def span(self):
        end = self.config.max_distance
        return (-end if self.config.two_sided else 0), end

    def by_distance(self, distances):
        return Entries(bias=lookup(self.table, self.config.bucket(distances)))
