"""The decoder-only Transformer: pre-norm blocks of a mixer and a feed-forward layer."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Key

from kernels.attention.places import Places, resolved
from longctx.attention.layer import Attention
from longctx.decoder_state import DecoderState, continued, counted_on
from longctx.dense import Linear
from longctx.layers import Activation, FeedForward, dropout
from longctx.mixer import Measured, MixerConfig, Told
from longctx.model import Model, ModelConfig
from longctx.remat import remat


@dataclass(frozen=True)
class Transformer(ModelConfig):
    """Config of a decoder-only Transformer (Vaswani et al. 2017; pre-norm, Xiong et al. 2020)."""

    layers: int = 4
    """Number of blocks."""
    model: int = 256
    """Width of the residual stream."""
    hidden: int = 1024
    """Width inside the feed-forward layers."""
    activation: Activation = "gelu"
    """Of the feed-forward layers."""
    mixer: MixerConfig | tuple[MixerConfig, ...] = Attention()
    """What carries information between tokens; a tuple has one for each block."""
    tied: bool = True
    """The output layer is the embedding table, transposed."""
    dropout: float = 0.1
    """Share of entries zeroed on the embedding and on each branch before it is added."""
    remat: bool = False
    """Keep only each block's input and attention while training, and compute the rest again."""

    def __post_init__(self):
        for name in ("layers", "model", "hidden"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if isinstance(self.mixer, tuple) and len(self.mixer) != self.layers:
            raise ValueError(
                f"{len(self.mixer)} mixers for {self.layers} layers: give one for each, like "
                "(local,) * 4 + (full,) * 2"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout}")

    @property
    def mixers(self) -> tuple[MixerConfig, ...]:
        """The mixer of each block."""
        return self.mixer if isinstance(self.mixer, tuple) else (self.mixer,) * self.layers

    @property
    def prefix(self) -> int | None:
        parts = [mixer.prefix for mixer in self.mixers]
        return None if None in parts else max(part for part in parts if part is not None)

    @property
    def selects_ahead(self) -> bool:
        return any(mixer.selects_ahead for mixer in self.mixers)

    @property
    def axes(self) -> int:
        return max(mixer.position_scheme.axes for mixer in self.mixers)

    def build(self, vocab: int, dtype: DTypeLike, seed: int) -> "TransformerModel":
        """Return the model with fresh float32 parameters, computing in `dtype`.

        Raises:
            ValueError: the widths do not fit each other.
        """
        return TransformerModel(self, vocab, dtype, nnx.Rngs(seed))

    def multiplications(self, params: nnx.State, vocab: int, window: int) -> float:
        """See `ModelConfig`: each mixer says how many pairs it scores."""
        matrices = sum(leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 2)
        if not self.tied:
            matrices -= vocab * self.model
        scored = sum(mixer.scored(self.model, window) for mixer in self.mixers)
        return matrices + 2 * scored / window


class TransformerModel(Model):
    """The network of a `Transformer` config."""

    def __init__(self, config: Transformer, vocab: int, dtype: DTypeLike, rngs: nnx.Rngs):
        self.config, self.dtype, self.axes = config, dtype, config.axes
        width = config.model
        init = nnx.initializers.normal(width**-0.5)
        self.embed = nnx.Embed(vocab, width, dtype=dtype, embedding_init=init, rngs=rngs)
        schemes = dict.fromkeys(
            part for mixer in config.mixers for part in mixer.position_scheme.parts
        )
        places = [scheme.in_embedding(width, rngs) for scheme in schemes]
        self.places = nnx.List([place for place in places if place is not None])
        self.least = max(1, config.prefix or 0)
        self.limit = min((s.limit for s in schemes if s.limit is not None), default=None)
        self.blocks = nnx.List([Block(config, mixer, dtype, rngs) for mixer in config.mixers])
        self.norm = nnx.LayerNorm(width, use_bias=False, dtype=dtype, rngs=rngs)
        self.head = None if config.tied else Linear(width, vocab, dtype, rngs)

    def init_state(self, batch: int, capacity: int) -> DecoderState:
        """Return the state before the first token, for up to `capacity` tokens a row."""
        layers = tuple(block.mixer.init_state(batch, capacity) for block in self.blocks)
        return DecoderState(layers, jnp.zeros(batch, jnp.int32))

    def training_state(self, batch: int) -> DecoderState | None:
        """Return what training carries from batch to batch; None if no layer carries anything."""
        layers = tuple(block.mixer.training_state(batch) for block in self.blocks)
        if all(layer is None for layer in layers):
            return None
        zeros = jnp.zeros(batch, jnp.int32)
        return DecoderState(layers, zeros, segment=zeros - 1)

    def told(self, state: DecoderState) -> Told:
        """Return what all layers tell of the pass that left this state; means over layers."""
        found = [
            told
            for block, layer in zip(self.blocks, state.layers, strict=True)
            if (told := block.mixer.told(layer)) is not None
        ]
        metrics: dict[str, list[Array]] = {}
        for told in found:
            for name, value in told.metrics.items():
                metrics.setdefault(name, []).append(value)
        means = {name: jnp.stack(values).mean() for name, values in metrics.items()}
        return Told(sum((told.loss for told in found), jnp.zeros(())), means)

    def absorb(self, state: DecoderState) -> None:
        """Update every layer's statistics by what a pass of training left in its state."""
        for block, layer in zip(self.blocks, state.layers, strict=True):
            block.mixer.absorb(layer)

    def grow_state(self, state: DecoderState, capacity: int) -> DecoderState:
        """Return the same state with room for `capacity` tokens a row."""
        layers = tuple(
            block.mixer.grow_state(layer, capacity)
            for block, layer in zip(self.blocks, state.layers, strict=True)
        )
        return replace(state, layers=layers)

    def __call__(
        self,
        tokens: Int[Array, "batch len"],
        at: Places = Places(),
        state: DecoderState | None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "batch len vocab"], DecoderState | None]:
        """Return float32 logits of each next token, and the state after these tokens.

        With a state, missing positions continue each row where it stopped; see `Mixer` for the
        rest. Dropout acts only when a key is given.

        Raises:
            ValueError: there are more tokens than a position scheme knows, or a mixer refuses.
        """
        given = at
        if state is not None:
            at = continued(at, state, tokens.shape)
        positions = self.counted(at, tokens.shape[1])
        keys = [None] * (1 + len(self.blocks))
        if dropout_key is not None:
            keys = list(jax.random.split(dropout_key, len(keys)))

        x = self.embedded(tokens, positions, keys[0])
        states = (None,) * len(self.blocks) if state is None else state.layers
        places = [given if _stands_alone(layer) else at for layer in states]
        if self.config.remat and (state is None or state.segment is not None):
            x, after = remat(self.blocks, x, places, states, keys[1:])
        else:
            after = []
            layers = zip(self.blocks, places, states, keys[1:], strict=True)
            for block, place, layer_state, layer_key in layers:
                x, layer_state = block(x, place, layer_state, layer_key)
                after.append(layer_state)
        if state is not None:
            state = DecoderState(tuple(after), *counted_on(at, state))
        return self.logits(x), state

    def counted(self, at: Places, length: int) -> Int[Array, "rows len"]:
        """Return the positions, counted from 0 in each document if they are not given.

        Raises:
            ValueError: there are more tokens than a position scheme knows.
        """
        if self.limit is not None and at.segments is None and length > self.limit:
            raise ValueError(
                f"{length} tokens, but the learned positions end after {self.limit}: "
                "cut the input, or train with a larger table"
            )
        positions = resolved(at, length).positions
        assert positions is not None
        return positions

    def embedded(
        self, tokens: Int[Array, "batch len"], positions: Int[Array, "rows len"], key: Array | None
    ) -> Float[Array, "batch len model"]:
        """Return what the first block reads."""
        x = self.embed(tokens) * self.config.model**0.5
        for place in self.places:
            x = place(x, positions)
        return dropout(x, self.config.dropout, key)

    def logits(self, x: Float[Array, "batch len model"]) -> Float[Array, "batch len vocab"]:
        """Return the float32 logits for what the last block wrote."""
        x = self.norm(x)
        logits = self.embed.attend(x) if self.head is None else self.head(x)
        return logits.astype(jnp.float32)


def _stands_alone(state: Any) -> bool:
    """Say whether a layer with this state sees no tokens but those that it is given."""
    return state is None or isinstance(state, Measured)


class Block(nnx.Module):
    """`x + mixer(norm(x))`, then `x + feed_forward(norm(x))`."""

    def __init__(self, config: Transformer, mixer: MixerConfig, dtype: DTypeLike, rngs: nnx.Rngs):
        self.rate = config.dropout
        self.mixer_norm = nnx.LayerNorm(config.model, use_bias=False, dtype=dtype, rngs=rngs)
        self.mixer = mixer.build(config.model, dtype, rngs)
        self.feed_norm = nnx.LayerNorm(config.model, use_bias=False, dtype=dtype, rngs=rngs)
        self.feed = FeedForward(config.model, config.hidden, config.activation, dtype, rngs)

    def __call__(self, x: Array, at: Places, state: Any, key: Array | None):
        keys = (None, None) if key is None else jax.random.split(key)
        y, state = self.mixer(self.mixer_norm(x), at, state)
        return self.fed(x + dropout(y, self.rate, keys[0]), keys[1]), state

    def fed(self, x: Array, key: Array | None) -> Array:
        """Return `x + feed_forward(norm(x))`."""
        return x + dropout(self.feed(self.feed_norm(x)), self.rate, key)
