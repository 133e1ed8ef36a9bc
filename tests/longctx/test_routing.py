"""Routing attention: what leaks and what doesn't, k-means against numpy, and what a pass tells."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention.places import Places
from longctx.attention.positions import FIRE, RelativeEmbedding
from longctx.mixer import Statistic
from longctx.mixers.centroids import normalised
from longctx.mixers.routing import Routing, RoutingTraining
from longctx.train.checkpoint import Checkpoints
from longctx.train.config import Train
from longctx.train.loop import initialise, train
from longctx.transformer import Transformer
from tests.longctx.documents import Documents

MODEL, LENGTH = 16, 40
SMALL = Routing.small()[0]
pytestmark = pytest.mark.usefixtures("quick_compilation")


def build(config) -> Any:
    return config.build(MODEL, jnp.float32, nnx.Rngs(0))


def inputs(rows=2, length=LENGTH, seed=0):
    return jax.random.normal(jax.random.key(seed), (rows, length, MODEL))


def compiled(layer):
    """Return the layer's pass, compiled, as a function of (x, at, state)."""
    graphdef, variables = nnx.split(layer)

    @jax.jit
    def call(variables, x, at, state):
        return nnx.merge(graphdef, variables)(x, at, state)

    return partial(call, variables)


@pytest.mark.parametrize("heads", [(4, 2), (4, 0)], ids=str)
@pytest.mark.parametrize(("selection", "leaks"), [("causal", False), ("paper", True)])
def test_the_future_selects_nothing_but_in_the_paper(selection, leaks, heads):
    config = replace(SMALL, selection=selection, heads=heads[0], local_heads=heads[1])
    call, x = compiled(build(config)), inputs()
    changed = x.at[:, 25:].set(inputs(seed=1)[:, 25:])
    before, after = (call(y, Places(), None)[0] for y in (x, changed))
    moved = np.any(before[:, :25] != after[:, :25], axis=-1)
    assert moved.any() == leaks
    if leaks:
        assert moved.mean() > 0.2


def test_a_pass_of_training_outputs_what_a_plain_one_does():
    layer, x = build(SMALL), inputs()
    segments = jnp.repeat(jnp.array([[3, -1, 5]]), jnp.array([14, 2, 24]), axis=1)
    call = compiled(layer)
    for at in (Places(), Places(segments=segments)):
        y, state = call(x, at, layer.training_state(2))
        np.testing.assert_array_equal(y, call(x, at, None)[0])
        start = layer.training_state(2)
        assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, start)
        assert jax.tree.structure(state) == jax.tree.structure(start)
    np.testing.assert_array_equal(state.counts.sum(axis=-1), 2 * 38)
    np.testing.assert_array_equal(state.asked, 2 * 38)


def vectors(layer, x):
    """Return the normalised queries and keys of the routing heads, in float64."""
    first = layer.config.local_heads
    q, (k, _) = layer.projections.queries(x), layer.projections.keys_values(x)
    both = np.asarray(jnp.concatenate([q, k], axis=2)[:, first:], np.float64)
    both -= both.mean(axis=-1, keepdims=True)
    return both / both.std(axis=-1, keepdims=True)


def test_absorbing_a_pass_is_a_step_of_k_means():
    layer, x = build(replace(SMALL, decay=0.9)), inputs()
    means = np.asarray(layer.centroids.means[...], np.float64)
    counts, sums = np.ones(means.shape[:2]), means.copy()
    for seed in range(3):
        x = inputs(seed=seed)
        found = vectors(layer, x)
        nearest = np.einsum("bhnd,hcd->bhnc", found, means).argmax(axis=-1)
        for h, c in np.ndindex(*counts.shape):
            these = found[:, h][nearest[:, h] == c]
            counts[h, c] = 0.9 * counts[h, c] + 0.1 * len(these)
            sums[h, c] = 0.9 * sums[h, c] + 0.1 * these.sum(axis=0)
            if len(these):
                mean = sums[h, c] / counts[h, c]
                means[h, c] = (mean - mean.mean()) / mean.std()
        distance = ((found - np.take_along_axis(
            np.broadcast_to(np.asarray(layer.centroids.means[...])[None], (2, *means.shape)),
            nearest[..., None], axis=2,
        )) ** 2).mean()  # fmt: skip
        state = layer(x, Places(), layer.training_state(2))[1]
        told = layer.told(state)
        np.testing.assert_allclose(told.loss, layer.config.commitment * distance, rtol=1e-4)
        layer.absorb(state)
        np.testing.assert_allclose(layer.centroids.means[...], means, atol=1e-4)
        np.testing.assert_allclose(layer.centroids.counts[...], counts, rtol=1e-4)
        np.testing.assert_allclose(layer.centroids.sums[...], sums, atol=1e-4)


def test_a_centroid_without_members_stays():
    layer = build(SMALL)
    before = layer.centroids.means[...]
    layer.absorb(layer.training_state(2))
    np.testing.assert_array_equal(layer.centroids.means[...], before)


def statistics(layer):
    return jax.tree.map(np.asarray, nnx.state(layer, Statistic))


def test_evaluation_and_decoding_change_no_centroid():
    layer = build(SMALL)
    before = statistics(layer)
    for state in (None, layer.init_state(2, LENGTH)):
        _, after = layer(inputs(), Places(), state)
        layer.absorb(after)
        assert layer.told(after) is None
    jax.tree.map(np.testing.assert_array_equal, statistics(layer), before)


def test_statistics_have_no_gradient_and_the_commitment_reaches_the_projections():
    layer, x = build(SMALL), inputs()
    graphdef, params, rest = nnx.split(layer, nnx.Param, ...)
    assert {path[-1] for path, _ in nnx.to_flat_state(rest)} == {"means", "sums", "counts"}

    @jax.jit
    @jax.grad
    def commitment(variables):
        layer = nnx.merge(graphdef, *variables)
        return layer.told(layer(x, Places(), layer.training_state(2))[1]).loss

    d_params, d_rest = commitment((params, rest))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(d_rest))
    routing = slice(SMALL.local_heads * MODEL // SMALL.heads, None)
    for projection in (d_params["projections"]["q"], d_params["projections"]["k"]):
        assert np.any(projection["kernel"][...][:, routing])


def test_metrics_see_a_dead_cluster_and_who_saw_nothing():
    layer = build(replace(SMALL, heads=2, local_heads=0, clusters=4))
    none = jnp.zeros(2)
    counts = jnp.zeros((2, 2, 4)).at[0, 0].set(jnp.array([4.0, 4, 0, 0])).at[1, 1, 2].set(8.0)
    state = RoutingTraining(
        counts, jnp.zeros((2, 2, 4, 8)), none, none, none.at[0].set(3.0), none + 5
    )
    metrics = layer.told(state).metrics
    np.testing.assert_allclose(metrics["routing/cluster_entropy"], np.log(2) / 2, rtol=1e-6)
    np.testing.assert_allclose(metrics["routing/dead_centroids"], 5 / 8)
    np.testing.assert_allclose(metrics["routing/largest_cluster"], 0.75)
    np.testing.assert_allclose(metrics["routing/unrouted"], 0.3)


def test_a_query_sees_the_latest_of_its_cluster_and_no_more():
    """With values that name their token, the output of a head of equal scores is a mean."""
    layer = build(Routing(heads=1, local_heads=0, clusters=3, window=5, commitment=0.0))
    x = inputs()
    q, (k, _) = layer.projections.queries(x), layer.projections.keys_values(x)
    q_cluster, k_cluster = (
        np.asarray(layer.centroids.scores(normalised(y)).argmax(axis=2)) for y in (q, k)
    )
    value = jax.nn.one_hot(jnp.arange(LENGTH) % MODEL, MODEL)
    v = jnp.broadcast_to(value, k.shape)
    real = jnp.ones((2, 1, LENGTH), bool)
    out, lse, _, _ = layer._route((q * 1e-6, k, v), real, Places(), None)
    for b, t in np.ndindex(2, LENGTH):
        members = [j for j in range(t + 1) if k_cluster[b, 0, j] == q_cluster[b, 0, t]][-5:]
        want = sum(np.asarray(value[j]) for j in members) / max(len(members), 1)
        np.testing.assert_allclose(out[b, 0, t], want, atol=1e-4)
        assert np.isfinite(lse[b, 0, t]) == bool(members)


def test_a_token_past_the_capacity_is_nan():
    layer = build(SMALL)
    y, _ = layer(inputs(length=10), Places(), layer.init_state(2, 9))
    assert np.isnan(y).all()


def test_what_sees_ahead_can_not_decode():
    layer = build(replace(SMALL, selection="paper"))
    assert layer.config.selects_ahead
    with pytest.raises(ValueError, match="later tokens decide"):
        layer.init_state(1, 4)
    with pytest.raises(ValueError, match="later tokens decide"):
        layer(inputs(), Places(), build(SMALL).init_state(2, LENGTH))


def test_training_moves_the_centroids_and_logs_what_layers_tell(tmp_path):
    mixer = Routing(heads=2, local_heads=1, clusters=3, window=4, decay=0.9)
    model = Transformer(layers=1, model=8, hidden=8, mixer=mixer, dropout=0.0)
    config = Train(
        data=Documents(), model=model, steps=2, batch=2, window=8, save_every=2, log_every=1
    )
    train(config, tmp_path / "run")
    start: Any = initialise(config)[2]
    found: Any = Checkpoints(tmp_path / "run" / "checkpoints", config).restore(2, start).state
    before, after = (s.params["blocks"][0]["mixer"]["centroids"] for s in (start, found))
    for name in ("means", "sums", "counts"):
        assert np.isfinite(after[name][...]).all()
        assert np.any(before[name][...] != after[name][...])
    # Of each step 2 rows of 8 queries and keys at most, so the counts are known to lie below this.
    assert float(after["counts"][...].sum()) <= 0.81 * 3 + 0.19 * 32 + 1e-3
    logged = "".join(f.read_text() for f in (tmp_path / "run").rglob("*.jsonl"))
    assert "routing/cluster_entropy" in logged


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Routing(local_heads=8), "leave no head to route"),
        (lambda: Routing(local_heads=-1), "local_heads -1"),
        (lambda: Routing(clusters=0), "clusters must be at least 1, not 0"),
        (lambda: Routing(window=0), "window must be at least 1, not 0"),
        (lambda: Routing(width=0), "width 0"),
        (lambda: Routing(decay=1.0), r"decay 1.0 must lie in \[0, 1\)"),
        (lambda: Routing(commitment=-1.0), "commitment -1.0"),
        (lambda: Routing(selection="none"), "selection must be"),  # pyright: ignore
        (lambda: build(Routing(heads=3, local_heads=1)), "must be a multiple of heads"),
        (lambda: build(Routing(position=FIRE())), "terms of the distance"),
        (lambda: build(Routing(position=RelativeEmbedding(values=True))), "terms of the distance"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(make, complaint):
    with pytest.raises(ValueError, match=complaint):
        make()


def test_more_clusters_than_tokens_are_refused_in_training():
    layer = build(replace(SMALL, clusters=41))
    with pytest.raises(ValueError, match="41 clusters of 40 tokens"):
        layer(inputs(), Places(), layer.training_state(2))


def test_scored_counts_local_and_routed_pairs():
    config = Routing(heads=4, local_heads=2, clusters=2, window=1, width=16)
    # 10 tokens, each with one local and one routed key and half of two centroids for q and for k.
    assert config.scored(64, 10) == 4 * (2 * 10 + 2 * (10 + 20))
