"""The recurrent baseline: one layer of LSTM cells."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from kernels.attention.places import Places
from longctx.dense import Linear
from longctx.mixer import Mixer, MixerConfig, refuse_packed_state
from longctx.mixers.documents import document_numbers, real_tokens


@dataclass(frozen=True)
class LSTM(MixerConfig):
    """LSTM cells with a forget gate (Gers et al. 2000) that starts open; O(1) memory per row."""

    paper: ClassVar[str] = "Hochreiter & Schmidhuber 1997"

    width: int | None = None
    """Number of cells; None is the model's width."""

    def __post_init__(self):
        if self.width is not None and self.width < 1:
            raise ValueError(f"LSTM needs a width of at least 1 cell, not {self.width}")

    @classmethod
    def small(cls):
        return (cls(), cls(width=12))

    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> "LSTMLayer":
        return LSTMLayer(model, model if self.width is None else self.width, dtype, rngs)


@partial(jax.tree_util.register_dataclass, data_fields=["h", "c"], meta_fields=[])
@dataclass(frozen=True)
class LSTMState:
    """The output and the cell of the last token."""

    h: Float[Array, "batch width"]
    c: Float[Array, "batch width"]


class LSTMLayer(Mixer):
    """The layer of an `LSTM` config.

        i, f, o = sigmoid(W x + U h + b)    g = tanh(W x + U h + b)
        c' = f c + i g                      h' = o tanh(c')

    The recurrence is float32; its products take operands in the compute dtype.
    """

    def __init__(self, model: int, width: int, dtype: DTypeLike, rngs: nnx.Rngs):
        self.width, self.dtype = width, dtype
        self.inputs = Linear(model, 4 * width, dtype, rngs)
        scale = width**-0.5
        self.recurrent = nnx.Param(scale * jax.random.normal(rngs.params(), (width, 4 * width)))
        self.bias = nnx.Param(jnp.zeros(4 * width).at[width : 2 * width].set(1.0))
        self.out = Linear(width, model, dtype, rngs)

    def init_state(self, batch: int, capacity: int) -> LSTMState:
        zeros = jnp.zeros((batch, self.width), jnp.float32)
        return LSTMState(zeros, zeros)

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: LSTMState | None = None,
    ) -> tuple[Float[Array, "batch len model"], LSTMState | None]:
        refuse_packed_state(at, state)
        real = real_tokens(x, at)
        first = jnp.diff(document_numbers(real, at), axis=1, prepend=0) > 0
        steps = [a.swapaxes(0, 1) for a in (self.inputs(x), real[..., None], first[..., None])]
        start = self.init_state(x.shape[0], 0) if state is None else state
        after, h = jax.lax.scan(self._step, start, steps)
        y = jnp.where(real[..., None], self.out(h.swapaxes(0, 1)), 0)
        return y, None if state is None else after

    def _step(self, state: LSTMState, step: list[Array]) -> tuple[LSTMState, Array]:
        x, real, first = step
        h, c = jnp.where(first, 0.0, state.h), jnp.where(first, 0.0, state.c)
        # Cast here and not before the loop, so that the gradient is summed over steps in float32.
        recurrent = self.recurrent[...].astype(self.dtype)
        past = jnp.matmul(h.astype(self.dtype), recurrent, preferred_element_type=jnp.float32)
        i, f, g, o = jnp.split(x + past + self.bias[...], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        after = LSTMState(jnp.where(real, h, state.h), jnp.where(real, c, state.c))
        return after, after.h.astype(self.dtype)
