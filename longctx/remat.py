"""A pass through blocks that keeps little for the backward pass (Chen et al. 2016)."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float, Key

from kernels.attention.places import Places
from kernels.attention.saved import OUTPUT


def remat(
    blocks: Sequence[nnx.Module],
    x: Float[Array, "batch len model"],
    at: Places,
    keys: Sequence[Key[Array, ""] | None],
) -> Float[Array, "batch len model"]:
    """Return `x` after all blocks, each called as `block(x, at, None, key)`.

    Kept are the blocks' inputs and the attention outputs. A run of equal blocks is one scan over
    their stacked parameters: in an unrolled pass XLA on a CPU would find the second computation
    equal to the first, and keep what was to be forgotten.
    """
    split = [nnx.split(block) for block in blocks]
    policy = jax.checkpoint_policies.save_only_these_names(OUTPUT)
    for graphdef, run in groupby(zip(split, keys, strict=True), key=lambda item: item[0][0]):
        layers = [(params, key) for (_, params), key in run]

        def one(x, layer, graphdef=graphdef):
            params, key = layer
            block: Any = nnx.merge(graphdef, params)
            return block(x, at, None, key)[0], None

        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
        x, _ = jax.lax.scan(jax.checkpoint(one, policy=policy), x, stacked)
    return x
