"""Attention = projections + position + pattern + key-value sharing + cache."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Bool, Float

from kernels.attention import Places, attention
from kernels.attention.places import resolved
from kernels.cost import useful_pairs
from longctx.attention.cache import KVCache
from longctx.attention.patterns import Causal, Pattern
from longctx.attention.positions import NoPosition, Position, RelativeEmbedding, RoPE
from longctx.dense import Linear
from longctx.mixer import Mixer, MixerConfig, refuse_packed_state


@dataclass(frozen=True)
class Attention(MixerConfig):
    """Multi-head softmax attention; its parts are chosen independently of each other."""

    paper: ClassVar[str] = "Vaswani et al. 2017; GQA: Ainslie et al. 2023"

    heads: int = 8
    """Query heads."""
    kv_heads: int | None = None
    """Key-value heads: None is as many as `heads` (MHA), 1 is MQA, between is GQA."""
    width: int | None = None
    """Total width of the queries (heads times head width); None is the model's width."""
    position: Position = NoPosition()
    """How place enters the score."""
    pattern: Pattern = Causal()
    """Which pairs of tokens may talk."""
    qk_norm: bool = False
    """Normalise queries and keys (RMSNorm) before the product (Henry et al. 2020)."""
    implementation: str | None = None
    """A kernel by name; None takes the first that can serve."""

    def __post_init__(self):
        if self.width is not None and self.width < 1:
            raise ValueError(f"width {self.width} must be positive")
        if self.heads < 1 or (self.kv_heads is not None and self.kv_heads < 1):
            raise ValueError(f"heads {self.heads} and kv_heads {self.kv_heads} must be positive")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")

    @classmethod
    def small(cls):
        table = RelativeEmbedding(max_distance=9)
        return (
            cls(heads=4, position=table, qk_norm=True),
            cls(heads=4, kv_heads=2, position=table),
            cls(heads=4, kv_heads=1, width=32, position=RoPE()),
        )

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "AttentionLayer":
        return AttentionLayer(self, model, dtype, rngs)

    @property
    def prefix(self) -> int | None:
        return self.pattern.prefix

    def scored(self, model: int, window: int) -> float:
        return (self.width or model) * useful_pairs(self.pattern, window, window)

    @property
    def position_scheme(self) -> Position:
        return self.position


class Projections(nnx.Module):
    """The weights of an `Attention` config: tokens into heads, and heads back into tokens.

    Raises:
        ValueError: the heads do not divide the width.
    """

    def __init__(self, config: Attention, model: int, dtype: DTypeLike, rngs: nnx.Rngs):
        width = model if config.width is None else config.width
        if width % config.heads:
            raise ValueError(f"width {width} must be a multiple of heads {config.heads}")
        self.config, self.dtype, self.dim = config, dtype, width // config.heads
        self.kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        self.q = Linear(model, width, dtype, rngs)
        self.k = Linear(model, self.kv_heads * self.dim, dtype, rngs)
        self.v = Linear(model, self.kv_heads * self.dim, dtype, rngs)
        self.out = Linear(width, model, dtype, rngs)
        if config.qk_norm:
            self.q_norm = nnx.RMSNorm(self.dim, dtype=dtype, rngs=rngs)
            self.k_norm = nnx.RMSNorm(self.dim, dtype=dtype, rngs=rngs)

    def queries(self, x: Float[Array, "batch len model"]) -> Float[Array, "batch heads len dim"]:
        """Return what tokens ask."""
        q = self._split(self.q(x))
        return self.q_norm(q) if self.config.qk_norm else q

    def keys_values(
        self, x: Float[Array, "batch len model"]
    ) -> tuple[Float[Array, "batch kv_heads len dim"], Float[Array, "batch kv_heads len dim"]]:
        """Return what tokens answer to, and what they answer."""
        k, v = self._split(self.k(x)), self._split(self.v(x))
        return (self.k_norm(k) if self.config.qk_norm else k), v

    def joined(self, y: Float[Array, "batch heads len dim"]) -> Float[Array, "batch len model"]:
        """Return what all heads found, as tokens."""
        return self.out(rearrange(y, "batch heads len dim -> batch len (heads dim)"))

    def _split(self, x: Array) -> Array:
        return rearrange(x, "batch len (heads dim) -> batch heads len dim", dim=self.dim)


class AttentionLayer(Projections, Mixer):
    """The layer of an `Attention` config; its state is a `KVCache`."""

    def __init__(self, config: Attention, model: int, dtype: DTypeLike, rngs: nnx.Rngs):
        super().__init__(config, model, dtype, rngs)
        self.place = config.position.in_attention(config.heads, self.dim, rngs)

    def init_state(self, batch: int, capacity: int) -> KVCache:
        window, axes = self.config.pattern.window, self.config.position.axes
        return KVCache.empty(batch, self.kv_heads, capacity, self.dim, self.dtype, window, axes)

    def grow_state(self, state: KVCache, capacity: int) -> KVCache:
        return state.grow(capacity)

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: KVCache | None = None,
        *,
        silent: int = 0,
        pattern: Pattern | None = None,
    ) -> tuple[Float[Array, "batch asking model"], KVCache | None]:
        """As `Mixer`; the first `silent` tokens are seen but ask nothing, so get no output.

        `pattern` takes the place of the config's, for a layer that serves in two roles.
        """
        q, (k, v) = self.queries(x[:, silent:]), self.keys_values(x)
        (y, _), state = self.attended(q, k, v, at, state, pattern or self.config.pattern)
        return self.joined(y), state

    def attended(
        self,
        q: Float[Array, "batch heads asking dim"],
        k: Float[Array, "batch kv_heads len dim"],
        v: Float[Array, "batch kv_heads len dim"],
        at: Places,
        state: KVCache | None,
        pattern: Pattern,
    ) -> tuple[tuple[Array, Array], KVCache | None]:
        """Return (out, lse) of the queries, which are of the last tokens, and the state after."""
        self._require_coordinates(at)
        term, silent = self.place.term(), k.shape[2] - q.shape[2]
        counted = resolved(at, k.shape[2])
        assert counted.positions is not None
        q = self.place.rotate(q, counted.positions[:, silent:])
        k = self.place.rotate(k, counted.positions)
        relative = pattern.relative and (term is None or term.relative)
        q_at = k_at = at if at.segments is None or relative else counted
        if self.config.position.axes == 0:
            q_at = k_at = q_at._replace(coordinates=None)
        if state is not None:
            if not state.packed:
                refuse_packed_state(at, state)
            if pattern.prefix is None:
                raise ValueError(f"{pattern} sees ahead, so it can't continue a state")
            q_at = self._for_each_row(counted, k.shape[0])
            if pattern.prefix:
                q = jnp.where(self._cut_prefix(q_at, pattern.prefix), jnp.nan, q)
            k, v, k_at, state = state.extend(k, v, q_at)
        q_at = jax.tree.map(lambda x: x[:, silent:], q_at)
        found = attention(
            q, k, v, pattern=pattern, term=term, q_at=q_at, k_at=k_at, return_lse=True,
            implementation=self.config.implementation,
        )  # fmt: skip
        assert isinstance(found, tuple)
        return found, state

    def _require_coordinates(self, at: Places) -> None:
        position, given = self.config.position, at.coordinates
        if position.axes and (given is None or given.shape[-1] != position.axes):
            raise ValueError(
                f"{position} reads {position.axes} coordinates of each token, but "
                f"{0 if given is None else given.shape[-1]} came: give Places(coordinates=...), as "
                "a vocabulary with `coordinates` supplies them"
            )

    def _cut_prefix(self, at: Places, prefix: int) -> Bool[Array, "batch 1 1 1"]:
        """Return which rows end inside the prefix: what comes later would change their outputs."""
        assert at.positions is not None
        last = at.positions.max(axis=1)[:, None, None, None]
        return (last >= 0) & (last + 1 < prefix)

    def _for_each_row(self, at: Places, batch: int) -> Places:
        """Return what a cache keeps of the places, for every row of the batch."""
        kept = at if self.config.position.axes else at._replace(coordinates=None)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, *x.shape[1:])), kept)
