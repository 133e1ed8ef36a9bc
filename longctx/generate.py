"""Cached generation: one pass over the prompts, then one token at a time, never recomputed."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Int

from kernels.attention.places import Places
from longctx.data.coordinates import Coordinates
from longctx.sampling import Sampler

STAGE = 256
"""Slots that a cache starts with; it doubles when it is full, so short texts read short caches."""
CHUNK = 64
"""Tokens between two looks at whether every row has ended."""


class _Loop(NamedTuple):
    """What one step hands to the next, for each row."""

    state: Any
    token: Array
    done: Array


def generate(
    graphdef: nnx.GraphDef,
    params: nnx.State,
    prompts: Sequence[Int[np.ndarray, " _"]],
    *,
    length: int,
    boundary: int,
    sampler: Sampler,
    rule: Coordinates | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda tokens: None,
) -> list[Int[np.ndarray, " _"]]:
    """Continue each prompt until the model samples the boundary or `length` new tokens are there.

    Args:
        prompts: one or more tokens each, of any lengths; the boundary alone asks for a beginning.
        length: the largest number of new tokens a row.
        boundary: the token that ends a row; it is not returned.
        rule: what gives tokens their coordinates, for a model that reads them (hashable).
        seed: equal seeds give equal tokens; a row's draws do not depend on how many rows follow.
        progress: called with the number of new tokens so far.

    Returns:
        The new tokens of each row.

    Raises:
        ValueError: a prompt is empty, there is none, `length` is not positive, the model's
            positions end before it, or the model reads coordinates and has no rule for them.
    """
    tokens, positions = _padded(prompts, length)
    longest = tokens.shape[1]
    model = nnx.merge(graphdef, params)
    _require_room(model.limit, model.least, prompts, length)
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(len(tokens)))
    capacity = _capacity(longest, longest + length)
    logits, state = _prefill(graphdef, params, tokens, positions, capacity, rule)
    first = sampler.sample(logits, _keys_at(keys, 0))
    loop = _Loop(state, first, first == boundary)
    pieces, made = [np.asarray(first)[:, None]], 1
    while made < length and not bool(loop.done.all()):
        if longest + made + CHUNK > capacity:
            capacity = _capacity(longest + made, longest + length)
            loop = loop._replace(state=_grow(graphdef, params, loop.state, capacity))
        loop, new = _decode(graphdef, params, loop, keys, made, CHUNK, sampler, boundary, rule)
        pieces.append(np.asarray(new))
        made += CHUNK
        progress(min(made, length))
    rows = np.concatenate(pieces, axis=1)[:, :length]
    ends = [np.flatnonzero(row == boundary) for row in rows]
    return [row[: end[0]] if len(end) else row for row, end in zip(rows, ends, strict=True)]


def _require_room(limit: int | None, least: int, prompts: Sequence[np.ndarray], new: int) -> None:
    shortest, given = min(map(len, prompts)), max(map(len, prompts))
    if shortest < least:
        raise ValueError(
            f"a prompt has {shortest} tokens, but the model reads the first {least} at once: give "
            "at least as many"
        )
    if limit is not None and given + new - 1 > limit:
        raise ValueError(
            f"{given} tokens and {new} new ones, but the learned positions end after {limit}: ask "
            "for fewer, or train with a larger table"
        )


def _padded(prompts: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the prompts as one array, padded on the right, and their positions, -1 for padding."""
    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("every prompt needs at least one token; the boundary alone is enough")
    if length < 1:
        raise ValueError(f"length must be at least 1 new token, not {length}")
    longest = max(len(prompt) for prompt in prompts)
    tokens = np.stack([np.pad(p, (0, longest - len(p))) for p in prompts]).astype(np.int32)
    place = np.arange(longest)
    return tokens, np.stack([np.where(place < len(p), place, -1) for p in prompts])


def _capacity(filled: int, total: int) -> int:
    """Return slots for one more chunk: STAGE, doubled until it fits, but little over `total`."""
    capacity = STAGE
    while capacity < filled + CHUNK:
        capacity *= 2
    return min(capacity, total + CHUNK)


def _keys_at(row_keys: Array, index: Array | int) -> Array:
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(row_keys, index)


def _places(rule: Coordinates | None, tokens: Array, positions: Array) -> Places:
    coordinates = None if rule is None else rule.coordinates(tokens, positions)
    return Places(positions, coordinates=coordinates)


@partial(jax.jit, static_argnums=(0, 4, 5))
def _prefill(graphdef, params, tokens: Array, positions: Array, capacity: int, rule):
    model = nnx.merge(graphdef, params)
    state = model.init_state(tokens.shape[0], capacity)
    logits, state = model(tokens, _places(rule, tokens, positions), state)
    last = positions.max(axis=1)
    return jnp.take_along_axis(logits, last[:, None, None], axis=1)[:, 0], state


@partial(jax.jit, static_argnums=(0, 3))
def _grow(graphdef, params, state, capacity: int):
    return nnx.merge(graphdef, params).grow_state(state, capacity)


@partial(jax.jit, static_argnums=(0, 5, 6, 7, 8), donate_argnums=(2,))
def _decode(graphdef, params, loop, row_keys, made, count, sampler, boundary, rule):
    model = nnx.merge(graphdef, params)

    def one_token(loop: _Loop, index: Array):
        tokens = loop.token[:, None]
        at = _places(rule, tokens, loop.state.length[:, None])
        logits, state = model(tokens, at, loop.state)
        token = sampler.sample(logits[:, 0], _keys_at(row_keys, index))
        token = jnp.where(loop.done, boundary, token)
        return _Loop(state, token, loop.done | (token == boundary)), token

    loop, tokens = jax.lax.scan(one_token, loop, made + jnp.arange(count))
    return loop, tokens.T
