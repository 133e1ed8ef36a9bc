"""Attention among tokens with one hash: who points the same way meets, whatever lies between."""

from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from kernels.attention.grouped import grouped
from kernels.attention.merge import merge
from kernels.attention.places import Places
from kernels.attention.selected import chunked
from longctx.attention.cache import KVCache
from longctx.attention.patterns import Causal, Local
from longctx.attention.positions import NoPosition, Position, RoPE
from longctx.dense import Linear
from longctx.layers import unit
from longctx.mixer import Mixer, MixerConfig, refuse_packed_state
from longctx.mixers.documents import each_row, real_tokens


@dataclass(frozen=True)
class LSH(MixerConfig):
    """Each token sees earlier ones of its hash bucket; queries are the keys, of length 1 as keys.

    Rounds of hashing are joined by their logsumexps, so a pair that meets in two rounds counts
    twice. A token that meets nobody takes its own value. Hashes are of the tokens' content, before
    a rotation by place, and the same in training and evaluation.

    With selection "paper" sorted tokens are cut into chunks. Then later tokens decide who is near,
    so **the likelihood is not causal** and the layer can't decode; it is for comparison with
    published numbers. With "causal", the default, a token sees the latest `window` of its bucket.
    """

    paper: ClassVar[str] = "Kitaev et al. 2020"

    heads: int = 8
    """Number of heads."""
    buckets: int = 32
    """Hash values, an even number; about the length over the window."""
    rounds: int = 2
    """Independent hashes."""
    window: int = 64
    """Keys that a query sees at most in a round; in the paper's selection the length of a chunk, of
    which it sees its own and the one before."""
    width: int | None = None
    """Total width of the queries (heads times head width); None is the model's width."""
    position: Position = NoPosition()
    """How place enters the score, by distance or rotation."""
    selection: Literal["causal", "paper"] = "causal"
    """Who is seen: the latest of the bucket, or who is near when all are sorted (not causal)."""
    seed: int = 0
    """Of the hashes."""
    implementation: str | None = None
    """A kernel by name; None takes the first that can serve."""

    def __post_init__(self):
        for name in ("heads", "buckets", "rounds", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.buckets % 2:
            raise ValueError(f"buckets {self.buckets} must be even: each direction has an opposite")
        if self.selection not in ("causal", "paper"):
            raise ValueError(f"selection must be 'causal' or 'paper', not {self.selection!r}")

    @classmethod
    def small(cls):
        return (cls(heads=4, buckets=4, window=3, position=RoPE()),)

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "LSHLayer":
        width = model if self.width is None else self.width
        if width < 1 or width % self.heads:
            raise ValueError(f"width {width} must be a multiple of heads {self.heads}")
        return LSHLayer(self, model, width // self.heads, dtype, rngs)

    @property
    def selects_ahead(self) -> bool:
        return self.selection == "paper"

    def scored(self, model: int, window: int) -> float:
        most = self.window if self.selection == "causal" else 2 * self.window
        pairs = np.minimum(np.arange(window) / self.buckets, most).sum()
        hashing = window * self.buckets / 4  # half as many products, each half a pair's work
        return (self.width or model) * self.rounds * float(pairs + hashing)

    @property
    def position_scheme(self) -> Position:
        return self.position


class LSHLayer(Mixer):
    """The layer of an `LSH` config; its state is a `KVCache` whose coordinates are the buckets.

    Raises:
        ValueError: the position scheme reads more than distances.
    """

    def __init__(self, config: LSH, model: int, dim: int, dtype: DTypeLike, rngs: nnx.Rngs):
        self.config, self.dim, self.dtype = config, dim, dtype
        self.qk = Linear(model, config.heads * dim, dtype, rngs)
        self.v = Linear(model, config.heads * dim, dtype, rngs)
        self.out = Linear(config.heads * dim, model, dtype, rngs)
        self.place = config.position.in_attention(config.heads, dim, rngs)
        term = self.place.term()
        if term is not None and (term.adds_values or term.by_distance(np.arange(1)) is None):
            raise ValueError(
                "LSH attention takes terms of the distance that add to scores alone, which "
                f"{config.position} is not: take RelativeEmbedding, T5Bias, ALiBi or RoPE"
            )

    def init_state(self, batch: int, capacity: int) -> KVCache:
        """Return an empty cache.

        Raises:
            ValueError: the selection is the paper's.
        """
        self._refuse_to_decode()
        heads, rounds = self.config.heads, self.config.rounds
        return KVCache.empty(batch, heads, capacity, self.dim, self.dtype, axes=heads * rounds)

    def grow_state(self, state: KVCache, capacity: int) -> KVCache:
        return state.grow(capacity)

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: KVCache | None = None,
    ) -> tuple[Float[Array, "batch len model"], KVCache | None]:
        if state is not None:
            self._refuse_to_decode()
            refuse_packed_state(at, state)
        split = "batch len (heads dim) -> batch heads len dim"
        q, v = (rearrange(f(x), split, dim=self.dim) for f in (self.qk, self.v))
        real = real_tokens(x, at)
        at = each_row(at, real)
        assert at.positions is not None
        buckets = self.hashed(q)
        q = self.place.rotate(q, at.positions)
        k, value, k_at, k_buckets = unit(q).astype(q.dtype), v, at, buckets
        if state is not None:
            flat = "batch rounds heads len -> batch len (rounds heads)"
            placed = at._replace(coordinates=rearrange(buckets, flat))
            slots = state.k.shape[2]
            k, value, k_at, state = state.extend(k, v, placed)
            assert k_at.coordinates is not None
            k_buckets = rearrange(
                k_at.coordinates, "batch len (rounds heads) -> batch rounds heads len",
                rounds=self.config.rounds,
            )  # fmt: skip
        found, lse = reduce(merge, self._rounds(q, k, value, at, k_at, buckets, k_buckets))
        alone = (lse == -jnp.inf) & real[:, None]
        found = jnp.where(alone[..., None], v, found.astype(v.dtype))
        if state is not None:  # a token past the capacity, as in `KVCache`
            lost = (at.positions >= slots).any(axis=1)
            found = jnp.where(lost[:, None, None, None], jnp.nan, found)
        return self.out(rearrange(found, "batch heads len dim -> batch len (heads dim)")), state

    def hashed(
        self, x: Float[Array, "batch heads len dim"]
    ) -> Int[Array, "batch rounds heads len"]:
        """Return `argmax [x R; -x R]` for each round and head (Andoni et al. 2015)."""
        config, x = self.config, jax.lax.stop_gradient(x).astype(jnp.float32)
        shape = (config.rounds, config.heads, self.dim, config.buckets // 2)
        directions = jax.random.normal(jax.random.key(config.seed), shape)
        turned = jnp.einsum("bhnd,rhdk->brhnk", x, directions, precision="highest")
        return jnp.concatenate([turned, -turned], axis=-1).argmax(axis=-1).astype(jnp.int32)

    def _rounds(
        self, q: Array, k: Array, v: Array, at: Places, k_at: Places, buckets: Array, theirs: Array
    ) -> list[tuple[Array, Array]]:
        """Return the (out, lse) of each round."""
        config = self.config
        shared = {"term": self.place.term(), "implementation": config.implementation}
        if config.selection == "paper":
            call = partial(chunked, pattern=Causal(), members=config.window, at=at, **shared)
            return [call(q, k, v, buckets[:, r]) for r in range(config.rounds)]
        call = partial(
            grouped, pattern=Local(config.window), groups=config.buckets, q_at=at, k_at=k_at,
            strict=True, **shared,
        )  # fmt: skip
        return [call(q, k, v, buckets[:, r], theirs[:, r]) for r in range(config.rounds)]

    def _refuse_to_decode(self) -> None:
        if self.config.selection == "paper":
            raise ValueError(
                "with selection 'paper' later tokens decide who is near, so tokens can't come one "
                "by one; train with selection 'causal'"
            )
