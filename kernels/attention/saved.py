"""What a backward pass needs of the forward pass."""

import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

OUTPUT = "attention_output"
"""A remat policy that saves this name never attends twice."""
BLIND = 1e30
"""The logsumexp that makes all weights of a row 0."""


def saved(out: Array, lse: Array) -> tuple[Array, Array]:
    """Return both, named `OUTPUT`."""
    return checkpoint_name(out, OUTPUT), checkpoint_name(lse, OUTPUT)


def of_rows(out: Array, lse: Array, d_out: Array, d_lse: Array) -> tuple[Array, Array]:
    """Return the logsumexp and the delta of each row, in float32 (Dao et al. 2022, B.2).

    A row's weights are `w = exp(scores - lse)`, 0 if it saw no key, and the gradient of its scores
    is `w (dO v^T - delta)`.
    """
    delta = (d_out.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1) - d_lse
    return jnp.where(lse == -jnp.inf, BLIND, lse), delta
