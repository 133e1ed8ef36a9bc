"""From logits to a token: temperature, then top-k, top-p and min-p, then a draw."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key


@dataclass(frozen=True)
class Sampler:
    """How a token is drawn; the filters act in this order and each may be off."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the most likely token."""
    top_k: int | None = None
    """Keep the k most likely tokens (Fan et al. 2018)."""
    top_p: float | None = None
    """Keep the fewest tokens whose probabilities sum to at least p (Holtzman et al. 2020)."""
    min_p: float | None = None
    """Keep tokens at least p times as likely as the likeliest (Nguyen et al. 2024)."""

    def __post_init__(self):
        if self.temperature < 0:
            raise ValueError(f"temperature can't be negative, and is {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} must lie in (0, 1], not {value}")

    def filter(self, logits: Float[Array, "batch vocab"]) -> Float[Array, "batch vocab"]:
        """Return the logits over the temperature, -inf for tokens that are filtered out."""
        if self.temperature > 0:
            logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = jax.lax.top_k(logits, self.top_k)[0][:, -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.top_p is not None:
            ordered = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
            p = jax.nn.softmax(ordered, axis=-1)
            kept = jnp.cumsum(p, axis=-1) - p < self.top_p
            least = jnp.min(jnp.where(kept, ordered, jnp.inf), axis=-1, keepdims=True)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        if self.min_p is not None:
            least = logits.max(axis=-1, keepdims=True) + jnp.log(self.min_p)
            logits = jnp.where(logits < least, -jnp.inf, logits)
        return logits

    def sample(
        self, logits: Float[Array, "batch vocab"], keys: Key[Array, " batch"]
    ) -> Int[Array, " batch"]:
        """Return one token a row, drawn with the row's own key."""
        if self.temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        draw = jax.vmap(jax.random.categorical)
        return draw(keys, self.filter(logits)).astype(jnp.int32)
