"""What a backward pass needs of attention, under a name that a remat policy can keep."""

from jax import Array
from jax.ad_checkpoint import checkpoint_name

OUTPUT = "attention_output"
"""A policy that saves this name never attends twice."""


def saved(out: Array, lse: Array) -> tuple[Array, Array]:
    """Return both, named `OUTPUT`."""
    return checkpoint_name(out, OUTPUT), checkpoint_name(lse, OUTPUT)
