"""A trained memory of another size, and filled with a corpus before the first question."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from kernels.attention.places import Places
from longctx.attention.memory import Store
from longctx.decoder_state import DecoderState
from longctx.mixers.memorizing import Memorizing
from longctx.transformer import Transformer, TransformerModel


def with_memory(config: Transformer, memory: int) -> Transformer:
    """Return the config with `memory` keys to retrieve from in every `Memorizing` mixer.

    The parameters are the same, so a trained model works with it.

    Raises:
        ValueError: there is no such mixer, or the memory is smaller than its `top_k`.
    """
    if not any(isinstance(mixer, Memorizing) for mixer in config.mixers):
        raise ValueError(f"no mixer of {config} is Memorizing, so there is no memory to enlarge")
    mixers = tuple(
        replace(mixer, memory=memory) if isinstance(mixer, Memorizing) else mixer
        for mixer in config.mixers
    )
    return replace(config, mixer=mixers if isinstance(config.mixer, tuple) else mixers[0])


def resized(state: DecoderState, like: DecoderState) -> DecoderState:
    """Return a state whose memories have the sizes of another's; smaller ones keep the newest.

    Both are of the same network but for its `memory`, and of the same number of rows.
    """

    def fit(old: Any, new: Any) -> Any:
        return old.resized(new.entries.k.shape[2]) if isinstance(old, Store) else old

    return jax.tree.map(fit, state, like, is_leaf=lambda node: isinstance(node, Store))


def load_corpus(
    model: TransformerModel,
    state: DecoderState,
    documents: Sequence[np.ndarray],
    chunk: int = 512,
) -> DecoderState:
    """Return the state after every row has read the documents, one after the other.

    `state` is of `init_state`, where tokens of one document may retrieve those of another. The
    memory holds the last `memory` tokens of the corpus; what is read later pushes out the oldest.

    Raises:
        ValueError: the chunk is not positive, or a row of the state holds several documents.
    """
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 token, not {chunk}")
    if state.segment is not None:
        raise ValueError("a packed state keeps documents apart; load a corpus into `init_state`")
    tokens = np.concatenate([np.zeros(0, np.int32), *documents]).astype(np.int32)
    graphdef, params = nnx.split(model)

    @jax.jit
    def read(params: nnx.State, tokens: jax.Array, there: jax.Array, state: DecoderState):
        positions = state.length[:, None] + jnp.arange(chunk)
        at = Places(jnp.where(there, positions, -1))
        rows = jnp.broadcast_to(tokens, positions.shape)
        return nnx.merge(graphdef, params)(rows, at, state)[1]

    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        there = np.arange(chunk) < len(part)
        state = read(params, jnp.asarray(np.resize(part, chunk)), jnp.asarray(there), state)
    return state
