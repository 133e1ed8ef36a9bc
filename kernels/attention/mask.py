"""Who sees whom: a pattern's verdict, and what holds under every pattern."""

from jax import Array
from jaxtyping import Bool

from kernels.attention.places import Places
from kernels.attention.spec import Pattern


def mask(pattern: Pattern, q_at: Places, k_at: Places) -> Bool[Array, "rows 1 q_len k_len"]:
    """Return which pairs talk: allowed, both there (position not -1), and of one document."""
    assert q_at.positions is not None
    assert k_at.positions is not None
    i, j = q_at.positions[:, None, :, None], k_at.positions[:, None, None, :]
    seen = pattern.allows(i, j) & (i >= 0) & (j >= 0)
    if q_at.segments is not None and k_at.segments is not None:
        seen &= q_at.segments[:, None, :, None] == k_at.segments[:, None, None, :]
    return seen
