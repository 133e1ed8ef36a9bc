"""One step of training: loss, gradient, update."""

import contextlib
import ctypes
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from einops import rearrange
from flax import nnx
from jax import Array
from jaxtyping import Float

from kernels.attention.places import Places
from longctx.data.batch import Batch
from longctx.train.state import TrainState


class StepMetrics(NamedTuple):
    """What a step reports: scalars that stay on the device until somebody reads them."""

    loss: Float[Array, ""]
    """Mean negative log-likelihood in nats per weighted token."""
    grad_norm: Float[Array, ""]
    """Global norm of the gradient before clipping."""


Step = Any
"""A jitted or compiled function (TrainState, Batch) -> (TrainState, StepMetrics)."""


def summed_loss(
    graphdef: nnx.GraphDef, params: nnx.State, batch: Batch, dropout_key: Array | None
) -> Float[Array, ""]:
    """Return the weighted sum of the negative log-likelihoods (nats) of a batch's targets."""
    at = jax.tree.map(jnp.asarray, Places(None, batch.segments, batch.coordinates))  # pyright: ignore
    model = nnx.merge(graphdef, params)
    logits, _ = model(jnp.asarray(batch.tokens), at, dropout_key=dropout_key)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
    return (losses * batch.weights).sum()


def make_step(
    graphdef: nnx.GraphDef,
    optimizer: optax.GradientTransformation,
    accumulate: int,
    seed: int,
) -> Step:
    """Return the jitted step; it consumes (donates) the state it is given.

    The batch is cut into `accumulate` equal parts whose gradients add up to the gradient of the
    whole. Dropout depends on the seed and the step's number alone, so a resumed run repeats it.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        keys = jax.random.split(key, accumulate)
        parts = jax.tree.map(
            lambda x: rearrange(x, "(part batch) ... -> part batch ...", part=accumulate), batch
        )

        def add_part(total, part):
            loss_grad = jax.value_and_grad(summed_loss, argnums=1)
            return jax.tree.map(jnp.add, total, loss_grad(graphdef, state.params, *part)), None

        first = jax.value_and_grad(summed_loss, argnums=1)(
            graphdef, state.params, jax.tree.map(lambda x: x[0], parts), keys[0]
        )
        rest = (jax.tree.map(lambda x: x[1:], parts), keys[1:])
        (loss, grads) = first if accumulate == 1 else jax.lax.scan(add_part, first, rest)[0]

        weight = jnp.maximum(batch.weights.sum(), 1.0)
        grads = jax.tree.map(lambda g: g / weight, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = cast(nnx.State, optax.apply_updates(state.params, updates))  # pyright: ignore
        metrics = StepMetrics(loss / weight, optax.tree.norm(grads))
        return TrainState(state.step + 1, params, opt_state), metrics

    return jax.jit(step, donate_argnums=0)


def compile_step(step: Step, state: TrainState, batch: Batch) -> Step:
    """Return the step compiled for batches like this one, and give the compiler's memory back.

    What XLA frees after compiling stays with the process under glibc, often more than the step
    itself will need; `malloc_trim` returns it.
    """
    compiled = step.lower(state, batch).compile()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return compiled
