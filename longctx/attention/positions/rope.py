"""Rotary position embedding (Su et al. 2021, equation 34), halves rotated as in GPT-NeoX."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from longctx.attention.positions.base import AttentionPlace, Position
from longctx.attention.positions.rope_scaling import NoScaling, RopeScaling
from longctx.variants import members


@dataclass(frozen=True)
class RoPE(Position):
    """Pairs of coordinates of queries and keys are rotated by an angle that grows with place."""

    base: float = 10_000.0
    """The wavelengths reach from 2 pi to about 2 pi times this, in tokens."""
    scaling: RopeScaling = NoScaling()
    """How a model reaches further than the length it was trained with."""

    paper = "Su et al. 2021"

    def __post_init__(self):
        if not self.base > 1:
            raise ValueError(f"RoPE needs a base above 1, not {self.base}")

    @classmethod
    def small(cls):
        kinds = members(RopeScaling).values()
        return tuple(cls(base=100.0, scaling=scaling) for kind in kinds for scaling in kind.small())

    @property
    def rotates(self):
        return True

    def in_attention(self, heads, dim, rngs):
        if dim % 2:
            raise ValueError(f"RoPE needs an even head width, not {dim}")
        self.scaling.frequencies(self.base, dim)  # raises while the model is built, not when run
        return _Rotation(self)


class _Rotation(AttentionPlace):
    """The angles are float32 in any precision: bfloat16 can't count past 256."""

    def __init__(self, config: RoPE):
        self.config = config

    def rotate(self, x, positions):
        scaling = self.config.scaling
        frequencies = scaling.frequencies(self.config.base, x.shape[-1]).astype(np.float32)
        phases = positions[:, None, :, None].astype(jnp.float32) * frequencies
        cos, sin = scaling.magnitude * jnp.cos(phases), scaling.magnitude * jnp.sin(phases)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
