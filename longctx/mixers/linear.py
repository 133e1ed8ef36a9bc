"""Linear attention: a sum over the past in the place of a softmax, so memory is constant."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from kernels.attention.places import Places
from longctx.dense import Linear
from longctx.mixer import Mixer, MixerConfig, refuse_packed_state
from longctx.mixers.documents import document_numbers, real_tokens

LEAST_NORMALISER = 1e-6


@dataclass(frozen=True)
class LinearAttention(MixerConfig):
    """Causal attention with scores `phi(q) . phi(k)`, phi = elu + 1; O(len) time."""

    paper: ClassVar[str] = "Katharopoulos et al. 2020"

    heads: int = 8
    """Number of heads."""
    width: int | None = None
    """Total width of the queries (heads times head width); None is the model's width."""
    chunk: int = 64
    """Tokens that see each other pair by pair; what came before them is one matrix."""

    def __post_init__(self):
        if self.heads < 1 or self.chunk < 1:
            raise ValueError(f"heads {self.heads} and chunk {self.chunk} must be positive")

    @classmethod
    def small(cls):
        return (cls(heads=4), cls(heads=4, width=8, chunk=7))

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "LinearAttentionLayer":
        width = model if self.width is None else self.width
        if width < 1 or width % self.heads:
            raise ValueError(f"width {width} must be a multiple of heads {self.heads}")
        return LinearAttentionLayer(self, model, width // self.heads, dtype, rngs)


@partial(jax.tree_util.register_dataclass, data_fields=["S", "z"], meta_fields=[])
@dataclass(frozen=True)
class LinearAttentionState:
    """The sums over all past tokens of `phi(k) v^T` and of `phi(k)`."""

    S: Float[Array, "batch heads dim dim"]
    z: Float[Array, "batch heads dim"]


class LinearAttentionLayer(Mixer):
    """The layer of a `LinearAttention` config; features and sums are float32."""

    def __init__(
        self, config: LinearAttention, model: int, dim: int, dtype: DTypeLike, rngs: nnx.Rngs
    ):
        self.config, self.dim, self.dtype = config, dim, dtype
        self.q = Linear(model, config.heads * dim, dtype, rngs)
        self.k = Linear(model, config.heads * dim, dtype, rngs)
        self.v = Linear(model, config.heads * dim, dtype, rngs)
        self.out = Linear(config.heads * dim, model, dtype, rngs)

    def init_state(self, batch: int, capacity: int) -> LinearAttentionState:
        shape = (batch, self.config.heads, self.dim)
        return LinearAttentionState(
            S=jnp.zeros((*shape, self.dim), jnp.float32), z=jnp.zeros(shape, jnp.float32)
        )

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: LinearAttentionState | None = None,
    ) -> tuple[Float[Array, "batch len model"], LinearAttentionState | None]:
        refuse_packed_state(at, state)
        real = real_tokens(x, at)
        split = "batch len (heads dim) -> batch heads len dim"
        q, k, v = (rearrange(f(x), split, dim=self.dim) for f in (self.q, self.k, self.v))
        q, k = phi(q), jnp.where(real[:, None, :, None], phi(k), 0.0)
        start = self.init_state(x.shape[0], 0) if state is None else state
        number = document_numbers(real, at)
        y, after = linear_attention(q, k, v.astype(jnp.float32), number, start, self.config.chunk)
        y = self.out(rearrange(y, "batch heads len dim -> batch len (heads dim)"))
        return jnp.where(real[..., None], y, 0), None if state is None else after


def phi(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return `elu(x) + 1` in float32, exact where it is small."""
    x = x.astype(jnp.float32)
    return jnp.where(x > 0, x + 1.0, jnp.exp(jnp.minimum(x, 0.0)))


def linear_attention(
    q: Float[Array, "batch heads len dim"],
    k: Float[Array, "batch heads len dim"],
    v: Float[Array, "batch heads len dim"],
    number: Int[Array, "batch len"],
    state: LinearAttentionState,
    chunk: int,
) -> tuple[Float[Array, "batch heads len dim"], LinearAttentionState]:
    """Return `q S / (q . z)` with the sums up to each token over its document, and the last sums.

    `q` and `k` are features; a zero key counts for nothing. `number` never falls within a row, and
    the state belongs to the document of number 0.
    """
    length = q.shape[2]
    chunk = min(chunk, length)
    more = -length % chunk
    number = jnp.pad(number, [(0, 0), (0, more)], mode="edge")
    q, k, v = (jnp.pad(a, [(0, 0), (0, 0), (0, more), (0, 0)]) for a in (q, k, v))
    cut = "batch heads (chunks chunk) dim -> chunks batch heads chunk dim"
    q, k, v = (rearrange(a, cut, chunk=chunk) for a in (q, k, v))
    numbers = rearrange(number, "batch (chunks chunk) -> chunks batch chunk", chunk=chunk)
    last = jnp.zeros(number.shape[0], number.dtype)
    (state, _), y = jax.lax.scan(_chunk, (state, last), (q, k, v, numbers))
    y = rearrange(y, "chunks batch heads chunk dim -> batch heads (chunks chunk) dim")
    return y[:, :, :length], state


def _chunk(carry: tuple[LinearAttentionState, Array], tokens: tuple[Array, ...]):
    """Return the sums after a chunk with the number of its last document, and its outputs."""
    (past, last), (q, k, v, number) = carry, tokens
    same = number[:, :, None] == number[:, None, :]
    pairs = jnp.where(jnp.tril(same)[:, None], jnp.einsum("bhqd,bhkd->bhqk", q, k), 0.0)
    q = jnp.where((number == last[:, None])[:, None, :, None], q, 0.0)
    y = jnp.einsum("bhqk,bhkd->bhqd", pairs, v) + jnp.einsum("bhqd,bhde->bhqe", q, past.S)
    normaliser = pairs.sum(axis=-1) + jnp.einsum("bhqd,bhd->bhq", q, past.z)

    end = number[:, -1]
    k = jnp.where((number == end[:, None])[:, None, :, None], k, 0.0)
    goes_on = (end == last)[:, None, None]
    S = jnp.where(goes_on[..., None], past.S, 0.0) + jnp.einsum("bhkd,bhke->bhde", k, v)
    z = jnp.where(goes_on, past.z, 0.0) + k.sum(axis=2)
    y = y / jnp.maximum(normaliser, LEAST_NORMALISER)[..., None]
    return (LinearAttentionState(S, z), end), y
