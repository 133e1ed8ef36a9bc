"""Rotary position embedding (Su et al. 2021, equation 34), halves rotated as in GPT-NeoX."""

from dataclasses import dataclass

import jax.numpy as jnp

from longctx.attention.positions.base import AttentionPlace, Position


@dataclass(frozen=True)
class RoPE(Position):
    """Pairs of coordinates of queries and keys are rotated by an angle that grows with place."""

    base: float = 10_000.0
    """The wavelengths reach from 2 pi to about 2 pi times this, in tokens."""

    def in_attention(self, heads, dim, rngs):
        if dim % 2:
            raise ValueError(f"RoPE needs an even head width, not {dim}")
        return _Rotation(self.base)


class _Rotation(AttentionPlace):
    def __init__(self, base: float):
        self.base = base

    def rotate(self, x, positions):
        half = x.shape[-1] // 2
        frequencies = self.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        phases = positions[:, None, :, None].astype(jnp.float32) * frequencies
        cos, sin = jnp.cos(phases), jnp.sin(phases)
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        rotated = [first * cos - second * sin, second * cos + first * sin]
        return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
