"""Whole tiles of what has any length."""

import jax.numpy as jnp
from jax import Array


def pad(x: Array, axis: int, to: int, fill: int = 0) -> Array:
    """Return an array whose length along an axis is the next multiple of `to`."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, -x.shape[axis] % to)
    return jnp.pad(x, widths, constant_values=fill)
