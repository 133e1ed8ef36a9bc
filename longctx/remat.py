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
    places: Sequence[Places],
    states: Sequence[Any],
    keys: Sequence[Key[Array, ""] | None],
) -> tuple[Float[Array, "batch len model"], list[Any]]:
    """Return `x` after all blocks, each called as `block(x, at, state, key)`, and their states.

    Kept are the blocks' inputs and the attention outputs. A run of equal blocks is one scan over
    their stacked parameters: in an unrolled pass XLA on a CPU would find the second computation
    equal to the first, and keep what was to be forgotten.
    """
    split = [nnx.split(block) for block in blocks]
    policy = jax.checkpoint_policies.save_only_these_names(OUTPUT)
    layers = zip(split, places, states, keys, strict=True)
    after = []
    for (graphdef, _), run in groupby(layers, key=lambda x: (x[0][0], jax.tree.structure(x[2]))):
        run = list(run)
        at = run[0][1]

        def one(x, layer, graphdef=graphdef, at=at):
            params, state, key = layer
            block: Any = nnx.merge(graphdef, params)
            return block(x, at, state, key)

        parts = [(params, state, key) for (_, params), _, state, key in run]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
        x, left = jax.lax.scan(jax.checkpoint(one, policy=policy), x, stacked)
        after += [jax.tree.map(lambda leaf, i=i: leaf[i], left) for i in range(len(run))]
    return x, after
