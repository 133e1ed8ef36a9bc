"""The convolutional baseline: a short causal filter and a gate."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from kernels.attention.places import Places
from longctx.dense import Linear
from longctx.mixer import Mixer, MixerConfig, refuse_packed_state
from longctx.mixers.documents import document_numbers, real_tokens


@dataclass(frozen=True)
class CausalConv(MixerConfig):
    """Gated convolution, depthwise separable; L layers see 1 + L (kernel - 1) tokens."""

    paper: ClassVar[str] = "Dauphin et al. 2017"

    kernel: int = 4
    """How many tokens a layer sees, the current one included."""
    width: int | None = None
    """Width of the gated values; None is the model's width."""

    def __post_init__(self):
        if self.kernel < 1 or (self.width is not None and self.width < 1):
            raise ValueError(
                f"CausalConv needs a kernel and a width of at least 1, not kernel {self.kernel} "
                f"and width {self.width}"
            )

    @classmethod
    def small(cls):
        return (cls(), cls(kernel=7, width=24))

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "CausalConvLayer":
        width = model if self.width is None else self.width
        return CausalConvLayer(self.kernel, model, width, dtype, rngs)


@partial(jax.tree_util.register_dataclass, data_fields=["inputs"], meta_fields=[])
@dataclass(frozen=True)
class ConvState:
    """The last `past` = kernel - 1 inputs of each row, padding left out; zeros before the first."""

    inputs: Float[Array, "batch past model"]


class CausalConvLayer(Mixer):
    """The layer of a `CausalConv` config.

    u_t = sum over j < kernel of filter_j * x_{t-j}    y = W (V u * sigmoid(G u))
    """

    def __init__(self, kernel: int, model: int, width: int, dtype: DTypeLike, rngs: nnx.Rngs):
        self.dtype = dtype
        scale = kernel**-0.5
        self.filter = nnx.Param(scale * jax.random.normal(rngs.params(), (kernel, model)))
        self.value = Linear(model, width, dtype, rngs)
        self.gate = Linear(model, width, dtype, rngs)
        self.out = Linear(width, model, dtype, rngs)

    def init_state(self, batch: int, capacity: int) -> ConvState:
        kernel, model = self.filter.shape
        return ConvState(jnp.zeros((batch, kernel - 1, model), self.dtype))

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: ConvState | None = None,
    ) -> tuple[Float[Array, "batch len model"], ConvState | None]:
        refuse_packed_state(at, state)
        real = real_tokens(x, at)
        number = document_numbers(real, at)
        past = (self.init_state(x.shape[0], 0) if state is None else state).inputs
        inputs = x.astype(self.dtype)
        padded = at.positions is not None or at.segments is not None
        if padded:  # filter the real tokens as if they were neighbours
            order = jnp.argsort(~real, axis=1, stable=True)
            inputs = jnp.take_along_axis(inputs, order[..., None], axis=1)
            number = jnp.take_along_axis(number, order, axis=1)
        inputs = jnp.concatenate([past, inputs], axis=1)
        u = self._filter(inputs, number)
        if padded:
            rank = jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
            u = jnp.take_along_axis(u, rank[..., None], axis=1)
        y = self.out(self.value(u) * jax.nn.sigmoid(self.gate(u)))
        y = jnp.where(real[..., None], y, 0)
        if state is None:
            return y, None
        last = real.sum(axis=1, keepdims=True) + jnp.arange(past.shape[1])
        return y, ConvState(jnp.take_along_axis(inputs, last[..., None], axis=1))

    def _filter(
        self, inputs: Float[Array, "batch past_and_len model"], number: Int[Array, "batch len"]
    ) -> Float[Array, "batch len model"]:
        """Return the filtered inputs, each of its own document's alone; sums are float32."""
        filters = self.filter[...]
        past, length = len(filters) - 1, number.shape[1]
        numbers = jnp.pad(number, [(0, 0), (past, 0)])
        u = jnp.zeros((), jnp.float32)
        for back, weight in enumerate(filters):
            then = slice(past - back, past - back + length)
            same = (numbers[:, then] == number)[..., None]
            u += weight * jnp.where(same, inputs[:, then], 0).astype(jnp.float32)
        return u.astype(self.dtype)
