"""Online spherical k-means: the centroids that queries and keys are routed by."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from longctx.mixer import Measured, Statistic

SMOOTHING = 1e-5
"""Laplace smoothing of the counts (van den Oord et al. 2017, appendix A)."""
LEAST_VARIANCE = 1e-12


def normalised(x: Float[Array, "*shape dim"]) -> Float[Array, "*shape dim"]:
    """Return LayerNorm without parameters, in float32."""
    x = x.astype(jnp.float32)
    x -= x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + LEAST_VARIANCE)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["counts", "sums", "distance", "vectors", "unrouted", "asked"],
    meta_fields=[],
)
@dataclass(frozen=True)
class RoutingTraining(Measured):
    """What one pass of training measured of each row; nothing is carried to the next."""

    counts: Float[Array, "batch heads clusters"]
    """Queries and keys nearest to each centroid."""
    sums: Float[Array, "batch heads clusters dim"]
    """Their sum."""
    distance: Float[Array, " batch"]
    """Their summed squared distance to it, a mean over dim."""
    vectors: Float[Array, " batch"]
    """How many they are in all heads."""
    unrouted: Float[Array, " batch"]
    """How many queries saw no key."""
    asked: Float[Array, " batch"]
    """How many there were in all routing heads."""

    def mean_distance(self) -> Float[Array, ""]:
        """Return the mean squared distance of a vector to its centroid."""
        return self.distance.sum() / jnp.maximum(self.vectors.sum(), 1.0)

    def metrics(self) -> dict[str, Float[Array, ""]]:
        """Return how evenly clusters are used, means over heads, and who saw nothing."""
        counts = self.counts.sum(axis=0)
        share = counts / jnp.maximum(counts.sum(axis=-1, keepdims=True), 1.0)
        entropy = -(share * jnp.log(jnp.where(share > 0, share, 1.0))).sum(axis=-1)
        return {
            "routing/cluster_entropy": entropy.mean(),
            "routing/dead_centroids": (counts == 0).mean(),
            "routing/largest_cluster": share.max(axis=-1).mean(),
            "routing/unrouted": self.unrouted.sum() / jnp.maximum(self.asked.sum(), 1.0),
        }


class Clusters(NamedTuple):
    """How queries and keys were routed."""

    vectors: tuple[Float[Array, "batch heads len dim"], Float[Array, "batch heads len dim"]]
    """Both normalised."""
    nearest: list[Int[Array, "batch heads len"]]
    """The cluster of each; -1 for padding."""


class Centroids(nnx.Module):
    """Centroids of each head, which follow moving averages of what came nearest to them.

    They begin at random directions, so they serve before the first update.
    """

    def __init__(self, heads: int, clusters: int, dim: int, rngs: nnx.Rngs):
        means = normalised(jax.random.normal(rngs.params(), (heads, clusters, dim)))
        self.means = Statistic(means)
        self.sums = Statistic(jnp.copy(means))  # steps donate each array once
        self.counts = Statistic(jnp.ones((heads, clusters)))

    def scores(
        self, x: Float[Array, "batch heads len dim"]
    ) -> Float[Array, "batch heads clusters len"]:
        """Return the float32 products of normalised vectors with the centroids; no gradient."""
        x = jax.lax.stop_gradient(x)
        means = jax.lax.stop_gradient(self.means[...])
        return jnp.einsum("bhnd,hcd->bhcn", x, means, precision="highest")

    def unmeasured(self, batch: int) -> RoutingTraining:
        """Return the state before a pass."""
        heads, clusters, dim = self.means.shape
        return RoutingTraining(
            counts=jnp.zeros((batch, heads, clusters)),
            sums=jnp.zeros((batch, heads, clusters, dim)),
            distance=jnp.zeros(batch),
            vectors=jnp.zeros(batch),
            unrouted=jnp.zeros(batch),
            asked=jnp.zeros(batch),
        )

    def measured(self, routed: Clusters, saw: Bool[Array, "batch heads len"]) -> RoutingTraining:
        """Return what a pass tells; `saw` is whether a query saw a key. Only `distance` has a
        gradient, that of the vectors."""
        vectors = jnp.concatenate(routed.vectors, axis=2)
        nearest = jnp.concatenate(routed.nearest, axis=2)
        chosen = jax.nn.one_hot(nearest, self.means.shape[1])  # of padding all 0
        means = jax.lax.stop_gradient(self.means[...])
        own = jnp.einsum("bhnc,hcd->bhnd", chosen, means)
        there = nearest >= 0
        squares = ((vectors - own) ** 2).mean(axis=-1)
        asks = routed.nearest[0] >= 0
        return RoutingTraining(
            counts=chosen.sum(axis=2),
            sums=jnp.einsum("bhnc,bhnd->bhcd", chosen, jax.lax.stop_gradient(vectors)),
            distance=jnp.where(there, squares, 0.0).sum(axis=(1, 2)),
            vectors=there.sum(axis=(1, 2), dtype=jnp.float32),
            unrouted=(asks & ~saw).sum(axis=(1, 2), dtype=jnp.float32),
            asked=asks.sum(axis=(1, 2), dtype=jnp.float32),
        )

    def update(
        self,
        counts: Float[Array, "heads clusters"],
        sums: Float[Array, "heads clusters dim"],
        decay: float,
    ) -> None:
        """Move towards the vectors that came nearest to each; a centroid without any stays."""
        self.counts[...] = decay * self.counts[...] + (1 - decay) * counts
        self.sums[...] = decay * self.sums[...] + (1 - decay) * sums
        total = self.counts[...].sum(axis=-1, keepdims=True)
        clusters = counts.shape[-1]
        smoothed = (self.counts[...] + SMOOTHING) / (total + clusters * SMOOTHING) * total
        means = normalised(self.sums[...] / smoothed[..., None])
        self.means[...] = jnp.where(counts[..., None] > 0, means, self.means[...])
