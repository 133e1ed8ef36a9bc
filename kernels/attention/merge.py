"""Join attention over separate sets of keys into attention over all of them."""

import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float


def merge(
    first: tuple[Float[Array, "*rows dim"], Float[Array, "*rows"]],
    second: tuple[Float[Array, "*rows dim"], Float[Array, "*rows"]],
) -> tuple[Float[Array, "*rows dim"], Float[Array, "*rows"]]:
    """Return the (out, lse) of the union of two disjoint sets of keys, in float32.

    `lse` is the logsumexp of the scores, -inf for a row that saw no key; such a row's `out` is 0.
    """
    (out_a, lse_a), (out_b, lse_b) = first, second
    top = jnp.maximum(lse_a, lse_b)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weight_a, weight_b = jnp.exp(lse_a - top), jnp.exp(lse_b - top)
    total = weight_a + weight_b
    safe = jnp.where(total > 0, total, 1.0)[..., None]
    out = (weight_a[..., None] * out_a + weight_b[..., None] * out_b) / safe
    lse = jnp.where(total > 0, top + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)
    return out, lse


def merge_over(
    axis: str, out: Float[Array, "*rows dim"], lse: Float[Array, "*rows"]
) -> tuple[Float[Array, "*rows dim"], Float[Array, "*rows"]]:
    """As `merge`, over what the devices of a mesh axis found; to be called in `shard_map`."""
    top = lax.pmax(lax.stop_gradient(lse), axis)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    weight = jnp.exp(lse - top)
    total = lax.psum(weight, axis)
    safe = jnp.where(total > 0, total, 1.0)
    out = lax.psum(weight[..., None] * out, axis) / safe[..., None]
    return out, jnp.where(total > 0, top + jnp.log(safe), -jnp.inf)
