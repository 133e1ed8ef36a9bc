"""One step of training: loss, gradient, update."""

import contextlib
import ctypes
from functools import partial
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
from longctx.mixer import Statistic
from longctx.model import Model
from longctx.train.state import TrainState


class StepMetrics(NamedTuple):
    """What a step reports: scalars that stay on the device until somebody reads them."""

    loss: Float[Array, ""]
    """Mean negative log-likelihood in nats per weighted token."""
    grad_norm: Float[Array, ""]
    """Global norm of the gradient before clipping."""
    told: dict[str, Float[Array, ""]]
    """What the network's layers tell, by name."""


Step = Any
"""A jitted or compiled function (TrainState, Batch) -> (TrainState, StepMetrics)."""


def token_losses(
    model: Model, batch: Batch, dropout_key: Array | None = None, state: Any = None
) -> tuple[Float[Array, "batch len"], Any]:
    """Return the negative log-likelihood (nats) of each target, and the state after the batch."""
    at = jax.tree.map(jnp.asarray, Places(None, batch.segments, batch.coordinates))  # pyright: ignore
    logits, state = model(jnp.asarray(batch.tokens), at, state, dropout_key=dropout_key)  # pyright: ignore
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets), state


def summed_loss(
    graphdef: nnx.GraphDef, params: nnx.State, batch: Batch, dropout_key: Array | None
) -> Float[Array, ""]:
    """Return the weighted sum of the negative log-likelihoods (nats) of a batch's targets."""
    losses, _ = token_losses(nnx.merge(graphdef, params), batch, dropout_key)
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
    Rows go on from the carry of the last step, if there is one; no gradient goes back into it.
    """

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, StepMetrics]:
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        before = state.carry
        if before is None:
            before = nnx.merge(graphdef, state.params).training_state(len(batch.tokens))
        keys = jax.random.split(key, accumulate)
        grads, found = _gradients(graphdef, state.params, batch, before, keys)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = cast(nnx.State, optax.apply_updates(state.params, updates))  # pyright: ignore
        params = _with_statistics(graphdef, state.params, params, found.after)
        metrics = StepMetrics(found.loss, optax.tree.norm(grads), found.told)
        carry = None if state.carry is None else found.after
        return TrainState(state.step + 1, params, opt_state, carry), metrics

    return jax.jit(step, donate_argnums=0)


class _Found(NamedTuple):
    """What a pass finds besides its gradient."""

    loss: Array
    told: dict[str, Array]
    after: Any


def _gradients(
    graphdef: nnx.GraphDef, params: nnx.State, batch: Batch, before: Any, keys: Array
) -> tuple[nnx.State, _Found]:
    """Return the gradient of the batch's mean loss, which is taken in a part for each key."""
    weight = jnp.maximum(batch.weights.sum(), 1.0)

    def objective(params, batch, before, key):
        model = nnx.merge(graphdef, params)
        losses, after = token_losses(model, batch, key, before)
        loss = (losses * batch.weights).sum() / weight
        told = None if after is None else model.told(after)
        if told is None:
            return loss, _Found(loss, {}, after)
        return loss + told.loss / len(keys), _Found(loss, told.metrics, after)

    def add_part(total, part):
        grads, found = jax.grad(objective, has_aux=True)(params, *part)
        return jax.tree.map(jnp.add, total, grads), found

    if len(keys) == 1:
        return jax.grad(objective, has_aux=True)(params, batch, before, keys[0])
    cut = partial(rearrange, pattern="(part rows) ... -> part rows ...", part=len(keys))
    parts = (*jax.tree.map(cut, (batch, before)), keys)
    grads, found = jax.lax.scan(add_part, jax.tree.map(jnp.zeros_like, params), parts)
    join = partial(rearrange, pattern="part rows ... -> (part rows) ...")
    told = {name: value.mean() for name, value in found.told.items()}
    return grads, _Found(found.loss.sum(), told, jax.tree.map(join, found.after))


def _with_statistics(
    graphdef: nnx.GraphDef, old: nnx.State, new: nnx.State, after: Any
) -> nnx.State:
    """Return the new parameters, with the statistics that the network makes of the old ones."""
    if after is None:
        return new
    model = nnx.merge(graphdef, old)
    model.absorb(after)
    return nnx.merge_state(new, nnx.state(model, Statistic))


def compile_step(step: Step, state: TrainState, batch: Batch) -> Step:
    """Return the step compiled for batches like this one, and give the compiler's memory back.

    What XLA frees after compiling stays with the process under glibc, often more than the step
    itself will need; `malloc_trim` returns it.
    """
    compiled = step.lower(state, batch).compile()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return compiled
