"""One step: parts add up to the whole, float32 stays, decay and clipping act where they should."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from configs.catalogue import load_config
from longctx.data.batch import Batch
from longctx.train.loop import initialise
from longctx.train.optimizer import AdamW
from longctx.train.state import TrainState
from longctx.train.step import make_step, summed_loss

TINY = load_config(str(Path(__file__).parents[2] / "configs" / "tiny.py"))
SHARP = replace(TINY, model=replace(TINY.model, dropout=0.0))


def batch(weights: np.ndarray, seed: int = 0, vocab: int = 48) -> Batch:
    draw = np.random.default_rng(seed).integers(0, vocab, (2, *weights.shape)).astype(np.int32)
    return Batch(draw[0], draw[1], weights.astype(np.float32))


def unequal() -> Batch:
    """Return a batch whose rows have 16, 3, 1 and 0 tokens that count, some of them half."""
    weights = np.zeros((4, 16))
    for row, count in enumerate((16, 3, 1, 0)):
        weights[row, :count] = 1
    weights[0, :5] = 0.5
    return batch(weights)


def plain_state(optimizer: optax.GradientTransformation) -> tuple[nnx.GraphDef, TrainState]:
    graphdef, _, state = initialise(SHARP)
    return graphdef, TrainState.create(state.params, optimizer)


def relative(a, b) -> float:
    """Return the largest distance of two trees' leaves, relative to the larger one's norm."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(
        float(np.linalg.norm(x - y) / max(np.linalg.norm(x), np.linalg.norm(y), 1e-20))
        for x, y in ((np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs)
    )


def moved(accumulate: int, rows: Batch) -> tuple[nnx.State, float, float]:
    """Return the change of the parameters under plain gradient descent: the gradient itself."""
    optimizer = optax.sgd(1.0)
    graphdef, state = plain_state(optimizer)
    before = jax.tree.map(np.asarray, state.params)
    state, metrics = make_step(graphdef, optimizer, accumulate, seed=0)(state, rows)
    change = jax.tree.map(lambda a, b: np.asarray(a) - b, state.params, before)
    return change, float(metrics.loss), float(metrics.grad_norm)


@pytest.fixture(scope="module")
def whole():
    return moved(1, unequal())


@pytest.mark.parametrize("accumulate", [2, 4])
def test_parts_of_unequal_weight_give_the_gradient_of_the_whole(accumulate, whole):
    change, loss, norm = moved(accumulate, unequal())
    assert relative(change, whole[0]) < 1e-5
    assert loss == pytest.approx(whole[1], rel=1e-6)
    assert norm == pytest.approx(whole[2], rel=1e-6)


def test_the_loss_is_the_mean_over_weighted_tokens(whole):
    rows = unequal()
    graphdef, state = plain_state(optax.sgd(1.0))
    logits = np.asarray(nnx.merge(graphdef, state.params)(jnp.asarray(rows.tokens))[0], np.float64)
    total = 0.0
    for row, column in np.argwhere(rows.weights > 0):
        scores = logits[row, column]
        chosen = scores[rows.targets[row, column]]
        total += rows.weights[row, column] * (np.log(np.exp(scores).sum()) - chosen)
    assert whole[1] == pytest.approx(total / rows.weights.sum(), rel=1e-5)


def test_parts_give_the_update_of_the_whole():
    """Three steps of AdamW; its first step divides by tiny numbers, so epsilon is not tiny."""
    states = []
    for accumulate in (1, 4):
        optimizer = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-3, eps=1e-3))
        graphdef, state = plain_state(optimizer)
        step = make_step(graphdef, optimizer, accumulate, seed=0)
        for _ in range(3):
            state, _ = step(state, unequal())
        states.append(state.params)
    assert relative(*states) < 1e-5


def test_a_batch_without_weight_changes_nothing_and_is_no_error():
    change, loss, norm = moved(1, batch(np.zeros((2, 16))))
    assert loss == norm == 0.0
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(change))


def test_dropout_differs_between_steps_and_repeats_with_the_step():
    graphdef, optimizer, state = initialise(TINY)
    step = make_step(graphdef, optimizer, 1, seed=0)
    rows = batch(np.ones((2, 16)))

    def loss_at(number: int) -> float:
        copy = jax.tree.map(jnp.copy, state)
        return float(step(TrainState(jnp.int32(number), copy.params, copy.opt_state), rows)[1].loss)

    assert loss_at(3) == loss_at(3)
    assert len({loss_at(number) for number in range(4)}) == 4


def test_parts_of_a_batch_drop_different_entries():
    graphdef, _, state = initialise(TINY)
    half = batch(np.ones((1, 16)))
    twice = jax.tree.map(lambda x: np.concatenate([x, x]), half)
    optimizer = optax.sgd(1.0)
    step = make_step(graphdef, optimizer, 2, seed=0)
    key = jax.random.split(jax.random.fold_in(jax.random.key(0), 0), 2)
    losses = [float(summed_loss(graphdef, state.params, half, k)) / 16 for k in key]
    metrics = step(TrainState.create(state.params, optimizer), twice)[1]
    assert abs(losses[0] - losses[1]) > 1e-3
    assert float(metrics.loss) == pytest.approx(np.mean(losses), rel=1e-5)


def test_in_bfloat16_parameters_and_optimizer_state_stay_float32():
    config = replace(SHARP, dtype="bfloat16")
    graphdef, optimizer, state = initialise(config)
    step = make_step(graphdef, optimizer, 2, seed=0)
    seen = nnx.merge(graphdef, state.params).blocks[0].feed.up(jnp.ones((1, 1, 16), jnp.bfloat16))
    assert seen.dtype == jnp.bfloat16
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    state, metrics = step(state, batch(np.ones((2, 16))))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state) == shapes
    for leaf in jax.tree.leaves((state.params, state.opt_state, metrics)):
        assert leaf.dtype in (jnp.float32, jnp.int32)


def test_the_loss_of_a_batch_that_is_seen_again_and_again_falls_below_a_tenth():
    config = replace(SHARP, optimizer=AdamW(learning_rate=3e-2, warmup=5), steps=150)
    graphdef, optimizer, state = initialise(config)
    step = make_step(graphdef, optimizer, 1, seed=0)
    rows = batch(np.ones((2, 16)))
    losses = []
    for _ in range(config.steps):
        state, metrics = step(state, rows)
        losses.append(float(metrics.loss))
    assert losses[0] > 3.5
    assert losses[-1] < 0.1 * losses[0]


def test_weight_decay_acts_on_matrices_only():
    """Without a gradient, decay is all that moves a parameter."""
    config = AdamW(learning_rate=0.1, warmup=0, weight_decay=0.5)
    params = {"matrix": jnp.ones((2, 3)), "table": jnp.ones((1, 2, 3)), "scale": jnp.ones(3)}
    optimizer = config.build(steps=10)
    updates, _ = optimizer.update(
        jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params
    )
    assert float(jnp.abs(updates["scale"]).max()) == 0.0
    for name in ("matrix", "table"):
        np.testing.assert_allclose(updates[name], -0.1 * 0.5 * params[name], rtol=1e-6)


def test_the_gradient_is_clipped_to_its_global_norm():
    """Seen in the mean of the gradients, (1 - beta1) g after one step."""
    config = AdamW(clip=0.5, beta1=0.9)
    optimizer = config.build(steps=10)
    params = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    for size, kept in ((10.0, 0.5), (0.1, 0.1)):
        grads = {"a": jnp.array([2.0, 1.0]) * size / 3, "b": jnp.array([2.0]) * size / 3}
        state = optimizer.update(grads, optimizer.init(params), params)[1]
        (mean,) = optax.tree.get_all_with_path(state, "mu")
        assert float(optax.tree.norm(mean[1])) == pytest.approx(0.1 * kept, rel=1e-5)


def test_the_learning_rate_warms_up_and_follows_half_a_cosine():
    config = AdamW(learning_rate=2.0, warmup=10, final=0.1)
    schedule = config.schedule(steps=110)
    assert float(schedule(0)) == 0.0
    for step in range(11):
        assert float(schedule(step)) == pytest.approx(2.0 * step / 10, rel=1e-6)
    for step in (10, 35, 60, 85, 110):
        cosine = (1 + np.cos(np.pi * (step - 10) / 100)) / 2
        assert float(schedule(step)) == pytest.approx(2.0 * (0.1 + 0.9 * cosine), rel=1e-5)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_run_shorter_than_its_warm_up_has_a_schedule(steps):
    schedule = AdamW(learning_rate=1.0, warmup=200).schedule(steps)
    assert all(0.0 <= float(schedule(step)) <= 1.0 for step in range(steps))


@pytest.mark.parametrize(
    ("field", "value"),
    [("learning_rate", 0.0), ("clip", -1.0), ("warmup", -1), ("weight_decay", -0.1)],
)
def test_impossible_optimizers_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        AdamW(**{field: value})
