"""The backward pass in pieces: pairs of a stretch of queries and a stretch of keys.

The kernel keeps its sums over queries in vector memory, which bounds how far it can walk. A scan
goes through the live pairs of stretches in one order, so sums have the same bits every time.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int32

from kernels.attention.pallas_tpu.backward import Given, Gradients, backward
from kernels.attention.pallas_tpu.tile import Inputs, Plan
from kernels.attention.pallas_tpu.walk import FLAG_BITS, walk
from kernels.attention.spec import Tile
from kernels.attention.term import Entries
from kernels.attention.tile_map import tile_map


def gradients(plan: Plan, inputs: Inputs, given: Given) -> Gradients:
    """Return the float32 gradients of whole padded sequences, shaped as the inputs."""
    steps = _walks(plan)
    if plan.q_tiles == plan.q_stretch and plan.k_tiles == plan.k_stretch:
        return _of_pair(plan, jnp.asarray(steps[0]), inputs, given)

    def add_pair(total: Gradients, walk_of_pair: Array) -> tuple[Gradients, None]:
        q_first, k_first = walk_of_pair[0] * plan.size, walk_of_pair[1] * plan.size
        part = _Part(plan, q_first, k_first)
        found = _of_pair(plan, walk_of_pair, part.inputs(inputs), part.given(given))
        return part.add(total, found), None

    f32 = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.float32))
    zero = Gradients(*f32((inputs.q, inputs.k, inputs.v, inputs.right)))
    return lax.scan(add_pair, zero, jnp.asarray(steps))[0]


def _walks(plan: Plan) -> Int32[np.ndarray, "pairs words"]:
    """Return the walk over each live pair of stretches, all equally long."""
    kinds = tile_map(plan.pattern, plan.q_len, plan.k_len, plan.size, plan.size)
    more = [(0, plan.q_tiles - kinds.shape[0]), (0, plan.k_tiles - kinds.shape[1])]
    kinds = np.pad(kinds, more, constant_values=Tile.SKIP)
    walks = []
    for row in range(0, plan.q_tiles, plan.q_stretch):
        for column in range(0, plan.k_tiles, plan.k_stretch):
            part = kinds[row : row + plan.q_stretch, column : column + plan.k_stretch]
            if (part != Tile.SKIP).any() or not walks:
                walks.append(walk(part, first=(row, column)))
    length = max(len(words) for words in walks)
    return np.stack([_rest(words, length) for words in walks])


def _rest(words: Int32[np.ndarray, " steps"], length: int) -> Int32[np.ndarray, " length"]:
    """Return a walk that stays where it ends, doing nothing, up to a length."""
    still = words[-1] & ~((1 << FLAG_BITS) - 1)
    return np.concatenate([words, np.full(length - len(words), still, np.int32)])


class _Part:
    """A pair of stretches: what it takes of whole arrays, and where its gradients go."""

    def __init__(self, plan: Plan, q_first: Array, k_first: Array):
        self.q = q_first, plan.q_stretch * plan.size
        self.k = k_first, plan.k_stretch * plan.size
        length = self.q[1] + self.k[1]
        self.distances = k_first - q_first + (plan.q_tiles - plan.q_stretch) * plan.size, length

    def inputs(self, x: Inputs) -> Inputs:
        entries = self._entries(x.right)
        segments = x.segments
        if segments is not None:
            segments = _take(segments[0], 2, self.q), _take(segments[1], 2, self.k)
        return Inputs(
            q=_take(x.q, 2, self.q), k=_take(x.k, 2, self.k), v=_take(x.v, 2, self.k),
            left=entries, right=entries, segments=segments,
        )  # fmt: skip

    def given(self, x: Given) -> Given:
        return Given(_take(x.d_out, 2, self.q), _take(x.lse, 3, self.q), _take(x.delta, 3, self.q))

    def add(self, total: Gradients, found: Gradients) -> Gradients:
        old = self._entries(total.entries)
        entries = total.entries
        for name, axis in ENTRY_AXES.items():
            table = getattr(entries, name)
            if table is not None:
                new = getattr(old, name) + getattr(found.entries, name)
                entries = entries._replace(**{name: _put(table, new, axis, self.distances)})
        return Gradients(
            q=_put(total.q, _take(total.q, 2, self.q) + found.q, 2, self.q),
            k=_put(total.k, _take(total.k, 2, self.k) + found.k, 2, self.k),
            v=_put(total.v, _take(total.v, 2, self.k) + found.v, 2, self.k),
            entries=entries,
        )

    def _entries(self, entries: Entries) -> Entries:
        for name, axis in ENTRY_AXES.items():
            table = getattr(entries, name)
            if table is not None:
                entries = entries._replace(**{name: _take(table, axis, self.distances)})
        return entries


ENTRY_AXES = {"embeddings": 1, "bias": 2}
"""Where tables list distances."""

Span = tuple[Array, int]


def _take(x: Array, axis: int, span: Span) -> Array:
    return lax.dynamic_slice_in_dim(x, *span, axis)


def _put(x: Array, part: Array, axis: int, span: Span) -> Array:
    return lax.dynamic_update_slice_in_dim(x, part, span[0], axis)


def _of_pair(plan: Plan, steps: Array, inputs: Inputs, given: Given) -> Gradients:
    found = backward(plan, steps, inputs, given)
    embeddings, bias = found.entries.embeddings, found.entries.bias
    if bias is not None:
        bias = bias.reshape(*bias.shape[:2], 1, -1)
    whole = Entries(embeddings, bias)
    return found._replace(entries=jax.tree.map(_summed, whole, inputs.right))


def _summed(gradient: Array, table: Array) -> Array:
    """Return the sum over the batch, and over the heads if they share the table."""
    gradient = gradient.sum(axis=0)
    return gradient if table.shape[0] > 1 else gradient.sum(axis=0, keepdims=True)
