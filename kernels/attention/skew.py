"""From scores by distance to scores by key, and back, without a gather (Huang et al. 2018, 3.4).

A query row r and a key column c of a tile lie a distance apart that depends on c - r alone. So
the scores `band[r, t] = q_r . e_t`, with embeddings `e_t` in order of falling distance, hold the
summand of pair (r, c) at `t = c - r + rows - 1`: each row is read one place further left than the
row above. Read flat, that is a plain matrix whose rows are one element shorter: a view.
"""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def skew(
    band: Float[Array, "*batch rows width"], columns: int
) -> Float[Array, "*batch rows columns"]:
    """Return `tile[r, c] = band[r, c - r + rows - 1]`; needs `columns < width`.

    Where that index runs past the row, the value is some other finite entry of `band`: with
    `width <= columns + r`, the caller must mask those pairs (for causal tiles they lie ahead).
    """
    *batch, rows, width = band.shape
    flat = band.reshape(*batch, rows * width)
    flat = flat[..., rows - 1 : rows - 1 + rows * (width - 1)]
    return flat.reshape(*batch, rows, width - 1)[..., :columns]


def unskew(
    tile: Float[Array, "*batch rows columns"], width: int
) -> Float[Array, "*batch rows width"]:
    """Return the gradient of `skew`: the transpose of that linear map."""
    *batch, rows, columns = tile.shape
    none = [(0, 0)] * len(batch)
    flat = jnp.pad(tile, [*none, (0, 0), (0, width - 1 - columns)])
    flat = flat.reshape(*batch, rows * (width - 1))
    flat = jnp.pad(flat, [*none, (rows - 1, 1)])
    return flat.reshape(*batch, rows, width)
