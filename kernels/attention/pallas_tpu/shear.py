"""The skew inside a register tile: rotate every row of a square by its number.

With `R[r, t] = q_r . e_t` for the distances of a tile (t counts keys from the one that stands where
row 0 does), pair (r, c) needs `t = c - r`. Rotating row r right by r puts it at column c if
`c >= r`; the entries that wrapped around are the ones that the right neighbour needs where `c < r`.
So a square of the bias is the lower triangle of one rotated square and the upper of the next, and
each square is multiplied and rotated once.
"""

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Num

from kernels.platform import device_kind, platform


def shear(x: Num[Array, "size size"]) -> Num[Array, "size size"]:
    """Return `y[r, c] = x[r, (c - r) % size]`."""
    if platform() != "tpu" or device_kind().startswith("TPU v4"):
        return _gather(x, -1)
    return pltpu.roll(x, 0, axis=1, stride=1, stride_axis=0)


def unshear(x: Num[Array, "size size"]) -> Num[Array, "size size"]:
    """Return `y[r, t] = x[r, (t + r) % size]`, the inverse of `shear`.

    The hardware rotates by a stride in one direction only, so this is a gather within a register.
    """
    return _gather(x, 1)


def _gather(x: Array, sign: int) -> Array:
    row, column = (lax.broadcasted_iota(jnp.int32, x.shape, axis) for axis in (0, 1))
    return jnp.take_along_axis(x, (column + sign * row) & (x.shape[1] - 1), axis=1)


def wrapped(size: int) -> Array:
    """Return where `shear` leaves what belongs to the next square: `c < r`."""
    row, column = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return column < row


def stays(size: int) -> Array:
    """Return where `unshear` leaves what belongs to the same square: `t + r < size`."""
    row, column = (lax.broadcasted_iota(jnp.int32, (size, size), axis) for axis in (0, 1))
    return column + row < size
