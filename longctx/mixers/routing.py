"""Routing attention: a query sees the keys of the cluster that its content falls in."""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from kernels.attention.api import attention
from kernels.attention.grouped import grouped
from kernels.attention.places import Places
from kernels.attention.selected import clustered
from kernels.cost import useful_pairs
from longctx.attention.cache import KVCache
from longctx.attention.layer import Attention, Projections
from longctx.attention.patterns import Causal, Local
from longctx.attention.positions import NoPosition, Position, RelativeEmbedding
from longctx.mixer import Mixer, MixerConfig, Told, refuse_packed_state
from longctx.mixers.centroids import Centroids, Clusters, RoutingTraining, normalised
from longctx.mixers.documents import each_row, real_tokens


@dataclass(frozen=True)
class Routing(MixerConfig):
    """Local heads beside heads that route: O(len (clusters + window)), best with sqrt(len) of both.

    With selection "paper" each cluster takes its own `window` tokens of the whole sequence. Then
    later tokens decide who is in a cluster, so **the likelihood is not causal** and the layer can't
    decode; it is for comparison with published numbers. "causal", the default, sends every token to
    its nearest centroid, and a query sees the latest `window` keys there.
    """

    paper: ClassVar[str] = "Roy et al. 2021"

    heads: int = 8
    """All heads."""
    local_heads: int = 4
    """The first of them, which see the latest `window` keys of all instead."""
    clusters: int = 16
    """Centroids of each routing head; about the square root of the length."""
    window: int = 256
    """Keys that a query sees at most: the latest, or the latest of its cluster."""
    width: int | None = None
    """Total width of the queries (heads times head width); None is the model's width."""
    position: Position = NoPosition()
    """How place enters the score, by distance or rotation."""
    selection: Literal["causal", "paper"] = "causal"
    """Who is in a cluster: all that fall in it, or the best of the sequence (not causal)."""
    decay: float = 0.999
    """Of the moving averages behind the centroids, for each step of training."""
    commitment: float = 1e-4
    """Factor of the loss that pulls queries and keys to their centroids."""
    implementation: str | None = None
    """A kernel by name; None takes the first that can serve."""

    def __post_init__(self):
        if not 0 <= self.local_heads < self.heads:
            raise ValueError(
                f"local_heads {self.local_heads} of heads {self.heads} leave no head to route: "
                "give fewer, or take Attention(pattern=Local(...))"
            )
        for name in ("clusters", "window"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.width is not None and self.width < 1:
            raise ValueError(f"width {self.width} must be positive")
        if self.selection not in ("causal", "paper"):
            raise ValueError(f"selection must be 'causal' or 'paper', not {self.selection!r}")
        if not 0.0 <= self.decay < 1.0 or not self.commitment >= 0.0:
            raise ValueError(
                f"decay {self.decay} must lie in [0, 1) and commitment {self.commitment} be at "
                "least 0"
            )

    @classmethod
    def small(cls):
        table = RelativeEmbedding(max_distance=9)
        return (cls(heads=4, local_heads=2, clusters=3, window=5, position=table),)

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "RoutingLayer":
        return RoutingLayer(self, model, dtype, rngs)

    @property
    def selects_ahead(self) -> bool:
        return self.selection == "paper"

    def scored(self, model: int, window: int) -> float:
        dim = (self.width or model) // self.heads
        if self.selection == "causal":
            routed = np.minimum(1 + np.arange(window) / self.clusters, self.window).sum()
        else:
            members = min(self.window, window)
            routed = self.clusters * members * (members + 1) / 2
        routed += 2 * window * self.clusters / 2  # to score centroids is half a pair's work
        local = useful_pairs(Local(self.window), window, window)
        return dim * (self.local_heads * local + (self.heads - self.local_heads) * float(routed))

    @property
    def position_scheme(self) -> Position:
        return self.position


@partial(jax.tree_util.register_dataclass, data_fields=["local", "routed"], meta_fields=[])
@dataclass(frozen=True)
class RoutingState:
    """What the heads remember; of the routed tokens the coordinates are their keys' clusters."""

    local: KVCache
    routed: KVCache


Heads = tuple[Array, Array, Array]
"""Queries, keys and values of some heads."""


class RoutingLayer(Mixer):
    """The layer of a `Routing` config.

    Raises:
        ValueError: the heads don't divide the width, or the position scheme reads more than
            distances.
    """

    def __init__(self, config: Routing, model: int, dtype: DTypeLike, rngs: nnx.Rngs):
        self.config, self.dtype = config, dtype
        plain = Attention(heads=config.heads, width=config.width, position=config.position)
        self.projections = Projections(plain, model, dtype, rngs)
        self.dim, routing = self.projections.dim, config.heads - config.local_heads
        self.local_place = (
            config.position.in_attention(config.local_heads, self.dim, rngs)
            if config.local_heads
            else None
        )
        self.routing_place = config.position.in_attention(routing, self.dim, rngs)
        term = self.routing_place.term()
        if term is not None and (term.adds_values or term.by_distance(np.arange(1)) is None):
            raise ValueError(
                f"routing heads take terms of the distance that add to scores alone, which "
                f"{config.position} is not: take RelativeEmbedding, T5Bias, ALiBi or RoPE"
            )
        self.centroids = Centroids(routing, config.clusters, self.dim, rngs)

    def init_state(self, batch: int, capacity: int) -> RoutingState:
        """Return empty caches.

        Raises:
            ValueError: the selection is the paper's.
        """
        self._refuse_to_decode()
        local, window = self.config.local_heads, self.config.window
        routing = self.config.heads - local
        return RoutingState(
            local=KVCache.empty(batch, local, capacity, self.dim, self.dtype, window),
            routed=KVCache.empty(batch, routing, capacity, self.dim, self.dtype, axes=routing),
        )

    def grow_state(self, state: RoutingState, capacity: int) -> RoutingState:
        return RoutingState(state.local, state.routed.grow(capacity))

    def training_state(self, batch: int) -> RoutingTraining:
        return self.centroids.unmeasured(batch)

    def told(self, state: Any) -> Told | None:
        if not isinstance(state, RoutingTraining):
            return None
        return Told(self.config.commitment * state.mean_distance(), state.metrics())

    def absorb(self, state: Any) -> None:
        if isinstance(state, RoutingTraining):
            counts, sums = state.counts.sum(axis=0), state.sums.sum(axis=0)
            self.centroids.update(counts, sums, self.config.decay)

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: RoutingState | RoutingTraining | None = None,
    ) -> tuple[Float[Array, "batch len model"], RoutingState | RoutingTraining | None]:
        cache = state if isinstance(state, RoutingState) else None
        self._check(x, at, state)
        at = at._replace(coordinates=None)
        real = real_tokens(x, at)[:, None]
        q, (k, v) = self.projections.queries(x), self.projections.keys_values(x)
        near, far = zip(
            *(jnp.split(y, [self.config.local_heads], axis=1) for y in (q, k, v)), strict=True
        )
        found, lse, clusters, routed = self._route(far, real, at, cache and cache.routed)
        if isinstance(state, RoutingTraining):
            state = self.centroids.measured(clusters, lse > -jnp.inf)
        ring = cache and cache.local
        if self.local_place is not None:
            nearby, ring = self._look_back(near, real, at, ring)
            found = jnp.concatenate([nearby, found], axis=1)
        if cache is not None:
            assert ring is not None
            assert routed is not None
            state = RoutingState(ring, routed)
        return self.projections.joined(found), state

    def _check(self, x: Array, at: Places, state: Any) -> None:
        if isinstance(state, RoutingState):
            self._refuse_to_decode()
            refuse_packed_state(at, state)
        elif isinstance(state, RoutingTraining) and self.config.clusters > x.shape[1]:
            raise ValueError(
                f"{self.config.clusters} clusters of {x.shape[1]} tokens: take about the square "
                "root of the tokens in a row"
            )

    def _refuse_to_decode(self) -> None:
        if self.config.selection == "paper":
            raise ValueError(
                "with selection 'paper' later tokens decide who is in a cluster, so tokens can't "
                "come one by one; train with selection 'causal'"
            )

    def _route(
        self, heads: Heads, real: Array, at: Places, cache: KVCache | None
    ) -> tuple[Array, Array, Clusters, KVCache | None]:
        """Return (out, lse) of the routing heads, how they were routed, and their cache after."""
        q, k, v = heads
        vectors = normalised(q), normalised(k)
        scores = [self.centroids.scores(x) for x in vectors]
        nearest = [jnp.where(real, score.argmax(axis=2), -1) for score in scores]
        at = each_row(at, real[:, 0])
        assert at.positions is not None
        q, k = (self.routing_place.rotate(x, at.positions) for x in (q, k))
        shared = {"term": self.routing_place.term(), "implementation": self.config.implementation}
        window, after = self.config.window, None
        if self.config.selection == "paper":
            out, lse = clustered(
                q, k, v, *scores, pattern=Causal(), members=window, at=at, **shared
            )
            return out, lse, Clusters(vectors, nearest), None
        k_at, k_group = at, nearest[1]
        if cache is not None:
            place = at._replace(
                coordinates=rearrange(k_group, "batch heads len -> batch len heads")
            )
            k, v, k_at, after = cache.extend(k, v, place)
            assert k_at.coordinates is not None
            k_group = rearrange(k_at.coordinates, "batch len heads -> batch heads len")
        out, lse = grouped(
            q, k, v, nearest[0], k_group, pattern=Local(window), groups=self.config.clusters,
            q_at=at, k_at=k_at, **shared,
        )  # fmt: skip
        if cache is not None:
            lost = (at.positions >= cache.k.shape[2]).any(axis=1)
            out = jnp.where(lost[:, None, None, None], jnp.nan, out)
        return out, lse, Clusters(vectors, nearest), after

    def _look_back(
        self, heads: Heads, real: Array, at: Places, cache: KVCache | None
    ) -> tuple[Array, KVCache | None]:
        """Return what the local heads find, and their cache after."""
        assert self.local_place is not None
        (q, k, v), after, counted = heads, None, each_row(at, real[:, 0])
        assert counted.positions is not None
        q, k = (self.local_place.rotate(x, counted.positions) for x in (q, k))
        q_at = k_at = at
        if cache is not None:
            q_at = counted
            k, v, k_at, after = cache.extend(k, v, counted)
        out = attention(
            q, k, v, pattern=Local(self.config.window), term=self.local_place.term(), q_at=q_at,
            k_at=k_at, implementation=self.config.implementation,
        )  # fmt: skip
        assert isinstance(out, jax.Array)
        return out, after
