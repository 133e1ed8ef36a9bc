"""Cross-attention: a decoder asks what an encoder wrote (Vaswani et al. 2017, section 3.2.3)."""

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from kernels.attention import Places, attention
from longctx.attention.layer import Attention
from longctx.attention.patterns import Full
from longctx.dense import Linear

Memory = tuple[
    Float[Array, "batch kv_heads source dim"],
    Float[Array, "batch kv_heads source dim"],
]
"""The keys and values of what is asked, made once."""


class CrossAttention(nnx.Module):
    """Attention of every token to all of a memory; place has no part in it.

    Heads, key-value sharing, width, norms and the kernel are those of an `Attention` config.
    """

    def __init__(self, config: Attention, model: int, dtype: DTypeLike, rngs: nnx.Rngs):
        width = model if config.width is None else config.width
        kv_heads = config.heads if config.kv_heads is None else config.kv_heads
        self.config, self.dim = config, width // config.heads
        self.q = Linear(model, width, dtype, rngs)
        self.k = Linear(model, kv_heads * self.dim, dtype, rngs)
        self.v = Linear(model, kv_heads * self.dim, dtype, rngs)
        self.out = Linear(width, model, dtype, rngs)
        if config.qk_norm:
            self.q_norm = nnx.RMSNorm(self.dim, dtype=dtype, rngs=rngs)
            self.k_norm = nnx.RMSNorm(self.dim, dtype=dtype, rngs=rngs)

    def read(self, x: Float[Array, "batch source model"]) -> Memory:
        """Return the keys and values of what an encoder wrote."""
        k, v = self._split(self.k(x)), self._split(self.v(x))
        return (self.k_norm(k) if self.config.qk_norm else k), v

    def __call__(
        self, x: Float[Array, "batch len model"], memory: Memory
    ) -> Float[Array, "batch len model"]:
        q, (k, v) = self._split(self.q(x)), memory
        if self.config.qk_norm:
            q = self.q_norm(q)
        q_at, k_at = (Places(jnp.arange(y.shape[2], dtype=jnp.int32)[None]) for y in (q, k))
        y = attention(
            q, k, v, pattern=Full(), q_at=q_at, k_at=k_at,
            implementation=self.config.implementation,
        )  # fmt: skip
        assert isinstance(y, jax.Array)
        return self.out(rearrange(y, "batch heads len dim -> batch len (heads dim)"))

    def _split(self, x: Array) -> Array:
        return rearrange(x, "batch len (heads dim) -> batch heads len dim", dim=self.dim)
