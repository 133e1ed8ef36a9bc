"""The encoder-decoder Transformer, and four switches that turn it into a decoder-only one."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int, Key

from kernels.attention.places import Places
from kernels.cost import useful_pairs
from longctx.attention.cross import CrossAttention, Memory
from longctx.attention.layer import Attention, AttentionLayer
from longctx.attention.patterns import Full, Pattern
from longctx.decoder_state import DecoderState
from longctx.layers import Activation, dropout
from longctx.model import Model, ModelConfig
from longctx.transformer import Block, Transformer, TransformerModel


@dataclass(frozen=True)
class EncoderDecoder(ModelConfig):
    """Config of an encoder-decoder (Vaswani et al. 2017; pre-norm, one embedding for both).

    Each of the four switches (Chung 2023) takes away one difference to a decoder-only model; with
    all of them the model is `decoder_only`.
    """

    encoder_layers: int = 4
    """Number of encoder blocks."""
    decoder_layers: int = 4
    """Number of decoder blocks."""
    model: int = 256
    """Width of the residual streams."""
    hidden: int = 1024
    """Width inside the feed-forward layers."""
    activation: Activation = "gelu"
    """Of the feed-forward layers."""
    mixer: Attention = Attention()
    """Self-attention; the pattern is the decoder's. Cross-attention has the same heads."""
    tied: bool = True
    """The output layer is the embedding table, transposed."""
    dropout: float = 0.1
    """Share of entries zeroed on the embedding and on each branch before it is added."""
    source: int = 128
    """The first tokens of a row, which the encoder reads. The next one starts the decoder."""
    share_cross_self: bool = False
    """The decoder's self-attention sees the memory before its own tokens, in one softmax."""
    share_encoder_decoder: bool = False
    """The encoder runs through the decoder's self-attention, feed-forward layers and norms."""
    align_layers: bool = False
    """A decoder layer sees what the encoder layer beside it attends to, not the last output.

    Of the last encoder layer nothing but its first norm is then left.
    """
    causal_encoder: bool = False
    """The encoder's pattern is the mixer's, not Full."""

    def __post_init__(self):
        for name in ("encoder_layers", "source"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("share_encoder_decoder", "align_layers"):
            if getattr(self, name) and self.encoder_layers != self.decoder_layers:
                raise ValueError(
                    f"{name} pairs encoder and decoder layers, but there are "
                    f"{self.encoder_layers} and {self.decoder_layers}: give as many of both"
                )
        if self.mixer.pattern.prefix != 0:
            raise ValueError(
                f"{self.mixer.pattern} sees ahead, which a decoder must not: give a causal "
                "pattern; the encoder has Full without causal_encoder"
            )
        if not (self.mixer.pattern.relative or self.share_cross_self):
            raise ValueError(
                f"{self.mixer.pattern} depends on where the row begins, but the decoder sees the "
                "target alone: set share_cross_self, or take a pattern of distances"
            )
        assert self.decoder_only  # has checks of its own

    @property
    def decoder_only(self) -> Transformer:
        """The model that is left when all four switches are set."""
        return Transformer(
            layers=self.decoder_layers, model=self.model, hidden=self.hidden,
            activation=self.activation, mixer=self.mixer, tied=self.tied, dropout=self.dropout,
        )  # fmt: skip

    @property
    def prefix(self) -> int:
        return self.source

    @property
    def axes(self) -> int:
        return self.mixer.position.axes

    @property
    def encoder_pattern(self) -> Pattern:
        """Which pairs of source tokens may talk."""
        return self.mixer.pattern if self.causal_encoder else Full()

    def build(self, vocab: int, dtype: DTypeLike, seed: int) -> "EncoderDecoderModel":
        """Return the model with fresh float32 parameters, computing in `dtype`.

        Raises:
            ValueError: the widths do not fit each other.
        """
        return EncoderDecoderModel(self, vocab, dtype, nnx.Rngs(seed))

    def multiplications(self, params: nnx.State, vocab: int, window: int) -> float:
        """See `ModelConfig`: tokens of the target are trained, after those of the source."""
        source, target = self.source, window - self.source
        flat = nnx.to_flat_state(params)
        total = sum(x.size * self._tokens(path, window) for path, x in flat if x.ndim == 2)
        if not self.tied:
            total -= vocab * self.model * target
        encoders = self.encoder_layers - self.align_layers
        pairs = encoders * useful_pairs(self.encoder_pattern, source, source)
        if self.share_cross_self:
            pairs += self.decoder_layers * useful_pairs(self.mixer.pattern, target, window)
        else:
            seen = target * source + useful_pairs(self.mixer.pattern, target, target)
            pairs += self.decoder_layers * seen
        return (total + 2 * (self.mixer.width or self.model) * pairs) / target

    def _tokens(self, path: tuple, window: int) -> int:
        """Return how many tokens of a window pass through the matrix at a path."""
        source, target = self.source, window - self.source
        of_memory = path[-2] in ("k", "v")
        if path[0] == "encoder":
            return source
        if path[0] == "cross":
            return source if of_memory else target
        if path[1] != "blocks":
            return target
        last = path[2] == self.decoder_layers - 1
        encodes = self.share_encoder_decoder and not (self.align_layers and last)
        return target + source * (encodes + (self.share_cross_self and of_memory))


@partial(jax.tree_util.register_dataclass, data_fields=["decoder", "memory"], meta_fields=["begun"])
@dataclass(frozen=True)
class EncoderDecoderState:
    """The decoder's state, each cross-attention's memory, and whether the source was read."""

    decoder: DecoderState
    memory: tuple[Memory, ...]
    begun: bool

    @property
    def length(self) -> Int[Array, " batch"]:
        """How many tokens each row has had, the source among them."""
        return self.decoder.length


class CrossBlock(nnx.Module):
    """The decoder's second sublayer: `x + cross_attention(norm(x), memory)`."""

    def __init__(self, config: EncoderDecoder, dtype: DTypeLike, rngs: nnx.Rngs):
        self.rate = config.dropout
        self.norm = nnx.LayerNorm(config.model, use_bias=False, dtype=dtype, rngs=rngs)
        self.attention = CrossAttention(config.mixer, config.model, dtype, rngs)

    def __call__(self, x: Array, memory: Memory, key: Array | None) -> Array:
        return x + dropout(self.attention(self.norm(x), memory), self.rate, key)


class EncoderDecoderModel(Model):
    """The network of an `EncoderDecoder` config: a decoder-only one, and what it has besides."""

    def __init__(self, config: EncoderDecoder, vocab: int, dtype: DTypeLike, rngs: nnx.Rngs):
        plain = config.decoder_only
        self.config, self.axes = config, config.axes
        self.decoder = TransformerModel(plain, vocab, dtype, rngs)
        self.limit, self.least = self.decoder.limit, config.source + 1
        own = 0 if config.share_encoder_decoder else config.encoder_layers - config.align_layers
        self.encoder = nnx.List([Block(plain, config.mixer, dtype, rngs) for _ in range(own)])
        norm = partial(nnx.LayerNorm, config.model, use_bias=False, dtype=dtype, rngs=rngs)
        self.encoder_norm = None if config.share_encoder_decoder else norm()
        crosses = 0 if config.share_cross_self else config.decoder_layers
        self.cross = nnx.List([CrossBlock(config, dtype, rngs) for _ in range(crosses)])

    def init_state(self, batch: int, capacity: int) -> EncoderDecoderState:
        """Return the state before the first token, for up to `capacity` tokens a row."""
        decoder = self.decoder.init_state(batch, capacity)
        return EncoderDecoderState(decoder, (), begun=False)

    def grow_state(self, state: EncoderDecoderState, capacity: int) -> EncoderDecoderState:
        """Return the same state with room for `capacity` tokens a row."""
        decoder = self.decoder.grow_state(state.decoder, capacity)
        return EncoderDecoderState(decoder, state.memory, state.begun)

    def __call__(
        self,
        tokens: Int[Array, "batch len"],
        at: Places = Places(),
        state: EncoderDecoderState | None = None,
        dropout_key: Key[Array, ""] | None = None,
    ) -> tuple[Float[Array, "batch len vocab"], EncoderDecoderState | None]:
        """Return float32 logits of each next token, and the state after these tokens.

        Rows hold `source` tokens, then the target, whose positions go on counting. The logits of
        source tokens are 0. The first chunk that a state takes must reach into the target; a row
        of it that does not (its positions are -1) becomes NaN. See `TransformerModel` for the rest.

        Raises:
            ValueError: the first chunk ends before the target, or the rows are packed.
        """
        if at.segments is not None:
            raise ValueError("a row is one source and its target: it can't hold packed documents")
        silent = 0 if state is not None and state.begun else self.config.source
        if silent and tokens.shape[1] <= silent:
            raise ValueError(
                f"{tokens.shape[1]} tokens, but {silent} are the source and the next one starts "
                f"the decoder: give at least {silent + 1} at first"
            )
        if state is not None and at.positions is None:
            length = state.length[:, None]
            at = at._replace(positions=length + jnp.arange(tokens.shape[1]))
        positions = self.decoder.counted(at, tokens.shape[1])
        keys = [None] * 3 if dropout_key is None else list(jax.random.split(dropout_key, 3))
        x = self.decoder.embedded(tokens, positions, keys[0])
        read = None
        if silent:
            read = self.encode(x[:, :silent], _cut(at, slice(silent)), keys[1])
            whole = positions[:, : silent + 1].min(axis=1)[:, None, None] >= 0
            read = [jnp.where(whole, memory, jnp.nan) for memory in read]
        x = x[:, silent:]
        if self.cross:
            at = _cut(at._replace(positions=positions), slice(silent, None))
        x, layers, memory = self._decode(x, at, read, state, keys[2])
        if state is not None:
            length = jnp.maximum(state.length, positions.max(axis=1) + 1)
            state = EncoderDecoderState(DecoderState(layers, length), memory, begun=True)
        return jnp.pad(self.decoder.logits(x), [(0, 0), (silent, 0), (0, 0)]), state

    def encode(self, x: Array, at: Places, key: Array | None) -> list[Array]:
        """Return what each decoder layer reads of the source."""
        config, blocks, norm = self.config, self.encoder, self.encoder_norm
        if norm is None:
            blocks, norm = self.decoder.blocks, self.decoder.norm
            if config.align_layers:
                blocks, norm = self.decoder.blocks[:-1], self.decoder.blocks[-1].mixer_norm
        inputs = []
        for block, block_key in zip(blocks, _keys(key, len(blocks)), strict=True):
            keys = _keys(block_key, 2)
            inputs.append(block.mixer_norm(x))
            y, _ = _attention(block)(inputs[-1], at, pattern=config.encoder_pattern)
            x = block.fed(x + dropout(y, config.dropout, keys[0]), keys[1])
        if config.align_layers:
            return [*inputs, norm(x)]
        return [norm(x)] * config.decoder_layers

    def _decode(
        self,
        x: Array,
        at: Places,
        read: list[Array] | None,
        state: EncoderDecoderState | None,
        key: Array | None,
    ) -> tuple[Array, tuple[Any, ...], tuple[Memory, ...]]:
        """Return what the last block writes, each layer's state, and each cross-attention's memory.

        `read` is what the layers read of the source, if it comes with these tokens.
        """
        kept = () if state is None else state.memory
        layers, memories = [], []
        for index, block in enumerate(self.decoder.blocks):
            keys = _keys(None if key is None else jax.random.fold_in(key, index), 3)
            layer = None if state is None else state.decoder.layers[index]
            seen, silent = block.mixer_norm(x), 0
            if read is not None and not self.cross:
                seen, silent = jnp.concatenate([read[index], seen], axis=1), read[index].shape[1]
            y, layer = _attention(block)(seen, at, layer, silent=silent)
            x = x + dropout(y, self.config.dropout, keys[0])
            if self.cross:
                cross = self.cross[index]
                memory = kept[index] if read is None else cross.attention.read(read[index])
                x = cross(x, memory, keys[1])
                memories.append(memory)
            x = block.fed(x, keys[2])
            layers.append(layer)
        return x, tuple(layers), tuple(memories)


def _attention(block: Block) -> AttentionLayer:
    assert isinstance(block.mixer, AttentionLayer)
    return block.mixer


def _cut(at: Places, tokens: slice) -> Places:
    return jax.tree.map(lambda x: x[:, tokens], at)


def _keys(key: Array | None, count: int) -> list[Array | None]:
    return [None] * count if key is None else list(jax.random.split(key, count))
