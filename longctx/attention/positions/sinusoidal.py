"""Sinusoids added to the token embeddings (Vaswani et al. 2017, section 3.5)."""

from dataclasses import dataclass

import jax.numpy as jnp

from longctx.attention.positions.base import EmbeddingPlace, Position


@dataclass(frozen=True)
class Sinusoidal(Position):
    """`sin(pos / base^(2i/d))` beside `cos(pos / base^(2i/d))`, any length."""

    base: float = 10_000.0
    """Ratio of the longest wavelength to the shortest."""

    def in_embedding(self, model, rngs):
        if model % 2:
            raise ValueError(f"Sinusoidal needs an even model width, not {model}")
        return _Sinusoids(self.base)


class _Sinusoids(EmbeddingPlace):
    def __init__(self, base: float):
        self.base = base

    def __call__(self, x, positions):
        half = x.shape[-1] // 2
        frequencies = self.base ** (-jnp.arange(half, dtype=jnp.float32) / half)
        phases = positions[..., None].astype(jnp.float32) * frequencies
        return x + jnp.concatenate([jnp.sin(phases), jnp.cos(phases)], axis=-1).astype(x.dtype)
