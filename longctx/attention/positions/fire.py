"""FIRE: a small network reads the distance relative to the query's place (Li et al. 2024)."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from kernels.attention.term import Term
from longctx.attention.positions.base import AttentionPlace, Position, require_at_least


@dataclass(frozen=True)
class FIRE(Position):
    """Scores rise by `MLP(psi(i - j) / psi(max(L, i)))` with `psi(x) = log(c x + 1)`.

    Place is therefore seen from the start of the document, and shifting a document changes it.
    """

    width: int = 32
    """Width inside the network."""
    scale: float = 0.1
    """Where the learned c starts."""
    threshold: float = 512.0
    """Where the learned L starts: queries before it all measure distances by it."""

    paper = "Li et al. 2024"

    def __post_init__(self):
        require_at_least(self, width=1)
        for name in ("scale", "threshold"):
            if not getattr(self, name) > 0:
                raise ValueError(f"FIRE needs a {name} above 0, not {getattr(self, name)}")

    @classmethod
    def small(cls):
        return (cls(width=8, threshold=8.0),)

    def in_attention(self, heads, dim, rngs):
        return _Network(self, heads, rngs)


class _Network(AttentionPlace):
    """Its ReLUs start with their kinks between the ratios 0 and 1, so that none starts dead.

    There is no bias behind the last layer: one number on all scores changes no weight.
    """

    def __init__(self, config: FIRE, heads: int, rngs: nnx.Rngs):
        width = config.width
        self.log_scale = nnx.Param(jnp.full((), math.log(config.scale)))
        self.log_threshold = nnx.Param(jnp.full((), math.log(config.threshold)))
        inner = jax.random.normal(rngs.params(), (width,))
        self.inner = nnx.Param(inner)
        self.offset = nnx.Param(-inner * jax.random.uniform(rngs.params(), (width,)))
        self.outer = nnx.Param(jax.random.normal(rngs.params(), (heads, width)) * width**-0.5)

    def term(self) -> "FIRETerm":
        return FIRETerm(
            jnp.exp(self.log_scale[...]),
            jnp.exp(self.log_threshold[...]),
            self.inner[...],
            self.offset[...],
            self.outer[...],
        )


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["scale", "threshold", "inner", "offset", "outer"],
    meta_fields=[],
)
@dataclass(frozen=True)
class FIRETerm(Term):
    """The score term of Li et al. 2024, equation 9; later keys count as distance 0."""

    scale: Float[Array, ""]
    threshold: Float[Array, ""]
    inner: Float[Array, " hidden"]
    offset: Float[Array, " hidden"]
    outer: Float[Array, "heads hidden"]

    @property
    def relative(self):
        return False

    def scores(self, q, q_at, k_at):
        assert q_at.positions is not None
        assert k_at.positions is not None
        distance = q_at.positions[:, :, None] - k_at.positions[:, None, :]
        reach = jnp.maximum(self.threshold, q_at.positions[:, :, None])
        ratio = self._psi(jnp.maximum(distance, 0)) / self._psi(reach)
        hidden = jax.nn.relu(ratio[..., None] * self.inner + self.offset)
        return jnp.einsum("bqkn,hn->bhqk", hidden, self.outer)

    def _psi(self, x: Array) -> Array:
        return jnp.log1p(self.scale * x)
