"""What a decoder remembers between two chunks of tokens, and where the next ones stand."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from kernels.attention.places import Places, resolved
from longctx.attention.cache import last_segment


@partial(
    jax.tree_util.register_dataclass, data_fields=["layers", "length", "segment"], meta_fields=[]
)
@dataclass(frozen=True)
class DecoderState:
    """What the model remembers: each layer's state and how many tokens each row has had.

    While training a layer may have none; rows are then packed, `segment` is the last one of each
    row, and `length` counts its tokens.
    """

    layers: tuple[Any, ...]
    length: Int[Array, " batch"]
    segment: Int[Array, " batch"] | None = None


def continued(at: Places, state: DecoderState, shape: tuple[int, ...]) -> Places:
    """Return the places of new tokens, whose missing positions go on where each row stopped."""
    if state.segment is None:
        if at.positions is None:
            at = at._replace(positions=state.length[:, None] + jnp.arange(shape[1]))
        return at
    if at.segments is None:
        at = at._replace(segments=jnp.zeros(shape, jnp.int32))
    if at.positions is None:
        positions = resolved(at, shape[1]).positions
        assert positions is not None
        before = jnp.where(at.segments == state.segment[:, None], state.length[:, None], 0)
        at = at._replace(positions=jnp.where(positions < 0, -1, positions + before))
    return at


def counted_on(at: Places, state: DecoderState) -> tuple[Array, Array | None]:
    """Return how many tokens each row's document has had after these, and its segment."""
    positions = at.positions
    assert positions is not None
    if state.segment is None:
        return jnp.maximum(state.length, positions.max(axis=1) + 1), None
    segment = last_segment(at)
    in_last = at.segments == segment[:, None]
    length = jnp.where(in_last, positions, -1).max(axis=1) + 1
    nothing = segment < 0
    return (
        jnp.where(nothing, state.length, length),
        jnp.where(nothing, state.segment, segment),
    )
