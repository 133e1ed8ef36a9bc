"""Cross-attention: a decoder asks what an encoder wrote (Vaswani et al. 2017, section 3.2.3)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from kernels.attention import Places, attention
from longctx.attention.layer import Projections
from longctx.attention.patterns import Full

Memory = tuple[
    Float[Array, "batch kv_heads source dim"],
    Float[Array, "batch kv_heads source dim"],
]
"""The keys and values of what is asked, made once."""


class CrossAttention(Projections):
    """Attention of every token to all of a memory; place has no part in it.

    Heads, key-value sharing, width, norms and the kernel are those of an `Attention` config.
    """

    def read(self, x: Float[Array, "batch source model"]) -> Memory:
        """Return the keys and values of what an encoder wrote."""
        return self.keys_values(x)

    def __call__(
        self, x: Float[Array, "batch len model"], memory: Memory
    ) -> Float[Array, "batch len model"]:
        q, (k, v) = self.queries(x), memory
        q_at, k_at = (Places(jnp.arange(y.shape[2], dtype=jnp.int32)[None]) for y in (q, k))
        y = attention(
            q, k, v, pattern=Full(), q_at=q_at, k_at=k_at,
            implementation=self.config.implementation,
        )  # fmt: skip
        assert isinstance(y, jax.Array)
        return self.joined(y)
