"""Memorizing attention: a local window, and the nearest of many earlier keys beyond it."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from kernels.attention import Places, merge
from kernels.attention.places import resolved
from longctx.attention.cache import KVCache
from longctx.attention.layer import Attention, AttentionLayer
from longctx.attention.memory import Entries, Storage, Store
from longctx.attention.memory.retrieval import Search, read
from longctx.attention.patterns import Beyond, Local, Recurrent
from longctx.attention.positions import Position, RelativeEmbedding
from longctx.layers import unit
from longctx.mixer import MixerConfig, Told
from longctx.mixers.documents import real_tokens

INITIAL_SCALE = 10.0


@dataclass(frozen=True)
class Memorizing(MixerConfig):
    """Local attention, and attention to the `top_k` nearest of the `memory` keys before it.

    Queries and keys of the memory are normalised and have no positions. What is retrieved gets no
    gradient. Train it on `Streamed` data to remember more than a batch holds. The parameters do
    not depend on `memory`: see `longctx.memory.with_memory`.
    """

    paper: ClassVar[str] = "Wu et al. 2022"

    heads: int = 8
    """Query heads."""
    kv_heads: int | None = None
    """Key-value heads, of the memory too; None is as many as `heads`."""
    width: int | None = None
    """Total width of the queries (heads times head width); None is the model's width."""
    position: Position = RelativeEmbedding(max_distance=512)
    """How place enters the local score; the memory has none."""
    window: int = 256
    """How many most recent keys the local attention sees; with `segment`, before the segment."""
    segment: int | None = None
    """Tokens in a segment of Transformer-XL, of which a query sees the earlier ones and `window`
    keys before them, as in the paper; None slides the window along instead."""
    memory: int = 4096
    """How many keys before the window can be retrieved."""
    top_k: int = 32
    """How many keys each query of each head retrieves."""
    joint: bool = False
    """One softmax over both, instead of one each and a learned gate between them."""
    storage: Storage = "float32"
    """How the memory keeps numbers; training without a carried memory rounds them alike."""
    divided: str | None = None
    """The axis of the current mesh over whose devices the memory's slots are divided; each searches
    its own. None: every device holds all."""
    approximate: float | None = None
    """The expected share of the nearest that is found, for speed on TPUs; None is all."""
    implementation: str | None = None
    """A kernel by name for the local attention; None takes the first that can serve."""

    def __post_init__(self):
        for name in ("window", "segment", "memory", "top_k"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.memory < self.top_k:
            raise ValueError(
                f"a memory of {self.memory} can't give top_k {self.top_k} keys: enlarge the memory "
                "or take fewer"
            )
        if self.storage not in get_args(Storage):
            raise ValueError(
                f"storage is {self.storage!r}; known are {', '.join(get_args(Storage))}"
            )
        if self.approximate is not None and not 0.0 < self.approximate < 1.0:
            raise ValueError(
                f"approximate is a share in (0, 1), not {self.approximate}; None searches exactly"
            )
        _ = self.local

    @classmethod
    def small(cls):
        common = partial(cls, heads=4, position=RelativeEmbedding(9), window=4, memory=16, top_k=3)
        return common(), common(kv_heads=2, joint=True, segment=6)

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "MemorizingLayer":
        return MemorizingLayer(self, model, dtype, rngs)

    @property
    def local(self) -> Attention:
        """The local part."""
        near = Local(self.window) if self.segment is None else Recurrent(self.segment, self.window)
        return Attention(
            self.heads, self.kv_heads, self.width, self.position, near,
            implementation=self.implementation,
        )  # fmt: skip

    @property
    def beyond(self) -> Beyond:
        """Which keys can be retrieved."""
        return Beyond(self.local.pattern, self.memory)

    def scored(self, model: int, window: int) -> float:
        return self.local.scored(model, window) + (self.width or model) * self.top_k * window

    @property
    def position_scheme(self) -> Position:
        return self.position


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["local", "store", "asked", "answered"],
    meta_fields=[],
)
@dataclass(frozen=True)
class MemorizingState:
    """What local attention and the memory keep, and how many of the last queries found any."""

    local: KVCache
    store: Store
    asked: Float[Array, " batch"]
    answered: Float[Array, " batch"]


class MemorizingLayer(AttentionLayer):
    """The layer of a `Memorizing` config.

        m = softmax(scale_h q k^T) v  over the top-k keys beyond those that local attention sees
        y = W (g m + (1 - g) local),  g = sigmoid(gate_h)

    A query reads keys that left its window alone, so nothing is read before it could be written
    and nothing twice, however tokens are cut into chunks.
    """

    def __init__(self, config: Memorizing, model: int, dtype: DTypeLike, rngs: nnx.Rngs):
        super().__init__(config.local, model, dtype, rngs)
        self.memorizing = config
        self.log_scale = nnx.Param(jnp.full(config.heads, math.log(INITIAL_SCALE)))
        if not config.joint:
            self.gate = nnx.Param(jnp.zeros(config.heads))

    def init_state(self, batch: int, capacity: int) -> MemorizingState:
        return self._empty(batch, packed=False)

    def training_state(self, batch: int) -> MemorizingState:
        return self._empty(batch, packed=True)

    def grow_state(self, state: MemorizingState, capacity: int) -> MemorizingState:
        return state

    def _empty(self, batch: int, packed: bool) -> MemorizingState:
        config, axes = self.memorizing, self.config.position.axes
        kv_heads, dim, near = self.kv_heads, self.dim, self.config.pattern.window
        local = KVCache.empty(batch, kv_heads, 0, dim, self.dtype, near, axes, packed=packed)
        slots, axis = config.beyond.window, config.divided
        store = Store.empty(batch, kv_heads, slots, dim, config.storage, packed, axis)
        return MemorizingState(local, store, jnp.zeros(batch), jnp.zeros(batch))

    def told(self, state: MemorizingState) -> Told:
        """Return the mean gate and the share of the queries that found a key, as metrics."""
        share = state.answered.sum() / jnp.maximum(state.asked.sum(), 1.0)
        metrics = {"memory/found": share}
        if not self.memorizing.joint:
            metrics["memory/gate"] = jax.nn.sigmoid(self.gate[...]).mean()
        return Told(jnp.zeros(()), metrics)

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: MemorizingState | None = None,
    ) -> tuple[Float[Array, "batch len model"], MemorizingState | None]:
        q, (k, v) = self.queries(x), self.keys_values(x)
        counted = resolved(at, x.shape[1])
        cache = None if state is None else state.local
        local, cache = self.attended(q, k, v, at, cache, self.config.pattern)
        new = Entries.of(unit(k), v, counted._replace(coordinates=None), self.memorizing.storage)
        memory = self._remembered(q, new, None if state is None else state.store)
        y = self.joined(self._together(local, memory).astype(self.dtype))
        if state is None:
            return y, None
        asked = real_tokens(x, counted)
        answered = asked & jnp.isfinite(memory[1]).any(axis=1)
        counts = (a.sum(axis=1).astype(jnp.float32) for a in (asked, answered))
        assert cache is not None
        return y, MemorizingState(cache, state.store.extend(new), *counts)

    def _remembered(self, q: Array, new: Entries, store: Store | None) -> tuple[Array, Array]:
        """Return (out, lse) of what the queries retrieve."""
        config = self.memorizing
        within = store is not None and q.shape[2] <= config.window  # no new token is far enough
        scale = jnp.exp(self.log_scale[...])[:, None, None]
        search = Search(config.top_k, config.beyond, config.approximate or 1.0)
        return read(unit(q), scale, store, None if within else new, search, new.at)

    def _together(self, local: tuple[Array, Array], memory: tuple[Array, Array]) -> Array:
        """Return the outputs of both; where nothing was found that is the local one."""
        if self.memorizing.joint:
            return merge((local[0].astype(jnp.float32), local[1]), memory)[0]
        gate = jax.nn.sigmoid(self.gate[...])[:, None, None]
        found = jnp.isfinite(memory[1])[..., None]
        out = local[0].astype(jnp.float32)
        return jnp.where(found, gate * memory[0] + (1.0 - gate) * out, out)
