"""ALiBi: a penalty that grows with the distance, at a fixed slope per head (Press et al. 2022)."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from kernels.attention.term import Entries, Term
from longctx.attention.positions.base import AttentionPlace, Position


@dataclass(frozen=True)
class ALiBi(Position):
    """Scores fall by `slope * distance`; nothing is learned."""

    two_sided: bool = False
    """Later keys are penalised too, for encoders; otherwise they count as distance 0."""

    paper = "Press et al. 2022"

    @classmethod
    def small(cls):
        return cls(), cls(two_sided=True)

    def in_attention(self, heads, dim, rngs):
        return _Slopes(heads, self.two_sided)


class _Slopes(AttentionPlace):
    def __init__(self, heads: int, two_sided: bool):
        self.heads, self.two_sided = heads, two_sided

    def term(self) -> "ALiBiTerm":
        return ALiBiTerm(jnp.asarray(slopes(self.heads)), self.two_sided)


def slopes(heads: int) -> Float[np.ndarray, " heads"]:
    """Return `2^(-8i/heads)` for i = 1, 2, ...; float32.

    For a number of heads that is no power of two: those of the power below, then every other one
    of the power above, as in the authors' code.
    """
    power = 2 ** (heads.bit_length() - 1)
    own = np.arange(1, power + 1) / power
    between = np.arange(1, 2 * (heads - power), 2) / (2 * power)
    return (2.0 ** (-8 * np.concatenate([own, between]))).astype(np.float32)


@partial(jax.tree_util.register_dataclass, data_fields=["slopes"], meta_fields=["two_sided"])
@dataclass(frozen=True)
class ALiBiTerm(Term):
    """The score term `-slope * distance`, in float32: bfloat16 can't count past 256.

    The slopes are an array with the heads' axis, so that heads which are shared out to several
    devices keep their own.
    """

    slopes: Float[Array, " heads"]
    two_sided: bool

    def scores(self, q, q_at, k_at):
        assert q_at.positions is not None
        assert k_at.positions is not None
        distance = q_at.positions[:, None, :, None] - k_at.positions[:, None, None, :]
        return self._bias(distance, self.slopes[:, None, None])

    def by_distance(self, distances):
        return Entries(bias=self._bias(jnp.asarray(distances), self.slopes[:, None]))

    def _bias(self, distance: Array, slopes: Array) -> Array:
        counted = jnp.abs(distance) if self.two_sided else jnp.maximum(distance, 0)
        return -slopes * counted.astype(jnp.float32)
