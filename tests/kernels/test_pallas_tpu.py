"""The TPU kernels' parts, and what only an interpreter of TPUs can see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from test_attention import Case, arrays, relative_error, run

from kernels.attention import IMPLEMENTATIONS, attention
from kernels.attention.pallas_tpu.band import Exact, Packed
from kernels.attention.pallas_tpu.call import run as run_tpu
from kernels.attention.pallas_tpu.shear import shear, unshear
from kernels.attention.pallas_tpu.tile import Plan
from kernels.attention.pallas_tpu.walk import Step, read, walk
from kernels.attention.spec import Tile
from kernels.platform import building_for
from longctx.attention.patterns import Causal, Local

CAREFUL = pltpu.InterpretParams(detect_races=True, out_of_bounds_reads="raise")
"""Copies are simulated, and what was never written reads as NaN."""


def test_the_race_detector_sees_a_race(capfd):
    def reads_too_early(x, out, buffer, semaphore):
        copy = pltpu.make_async_copy(x, buffer, semaphore)
        copy.start()
        out[...] = buffer[...]
        copy.wait()

    call = pl.pallas_call(
        reads_too_early,
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        interpret=CAREFUL,
    )
    try:
        call(jnp.ones((8, 128))).block_until_ready()
        said = capfd.readouterr().out
    except jax.errors.JaxRuntimeError as error:  # JAX 0.10 prints, 0.12 raises
        said = str(error)
    assert "RACE DETECTED" in said


@pytest.mark.parametrize(
    "case",
    [
        Case(1, 2, 2, 40, 48, 16, Causal()),
        Case(2, 2, 1, 40, 48, 16, Causal(), (2, 50, 0), "bias embeddings", documents=2),
        Case(1, 2, 2, 40, 40, 16, Local(9), (1, 50, 0)),
    ],
    ids=str,
)
def test_no_race_no_read_out_of_bounds_and_none_of_what_was_never_written(case, capfd, monkeypatch):
    def careful(q, k, v, pattern, term, q_at, k_at):
        plan = Plan(pattern, q.shape[2], k.shape[2], 16, lanes=8, longest=2, interpret=CAREFUL)
        return run_tpu(plan, q, k, v, term, q_at, k_at)

    monkeypatch.setitem(IMPLEMENTATIONS, "careful", careful)
    inputs = arrays(case)
    (out, lse), grads = run(case, inputs, "careful", explicit=False)
    (want, want_lse), want_grads = run(case, inputs, "reference", explicit=False)
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    for ours, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(want_grads), strict=True):
        assert relative_error(ours, theirs) <= 1e-5
    assert "RACE DETECTED" not in capfd.readouterr().out


def test_a_walk_visits_what_is_live_and_knows_where_runs_begin_and_end():
    kinds = np.array([[1, 0, 2, 2], [0, 0, 0, 0], [2, 1, 0, 1]], np.int8)
    words = walk(kinds, first=(5, 7))
    steps = [read(words, t) for t in range(len(words) - 2)]
    assert [(s.row, s.column) for s in steps] == [
        (0, 0), (0, 2), (0, 3), (1, 0), (2, 0), (2, 1), (2, 3),
    ]  # fmt: skip
    assert [(s.q_tile, s.k_tile) for s in steps[:2]] == [(5, 7), (5, 9)]
    flags = {flag: [bool(s.has(flag)) for s in steps] for flag in Step}
    assert flags[Step.FIRST] == [True, False, False, True, True, False, False]
    assert flags[Step.LAST] == [False, False, True, True, False, False, True]
    assert flags[Step.LIVE] == [True, True, True, False, True, True, True]
    assert flags[Step.MASK] == [True, False, False, False, False, True, True]
    assert flags[Step.OPEN] == [True, True, False, False, True, False, True]
    assert flags[Step.CLOSE] == [True, False, True, False, False, True, True]
    assert Tile.PARTIAL == 1


def test_shear_and_unshear_undo_each_other():
    x = jnp.arange(64.0).reshape(8, 8)
    sheared = shear(x)
    for r in range(8):
        np.testing.assert_array_equal(sheared[r], np.roll(x[r], r))
    np.testing.assert_array_equal(unshear(sheared), x)


@pytest.mark.parametrize("kind", [Exact, Packed])
def test_the_way_back_is_the_transpose_of_the_way_there(kind):
    """A row of three tiles: `by_distance` of `by_key`'s cotangent is the gradient."""
    n, lanes = 4, 8
    band = kind(n, lanes, together=2 if kind is Packed else 1)
    size = n * lanes
    keys = jax.random.split(jax.random.key(0), 2)
    said = jax.random.normal(keys[0], (size, 4 * size)).astype(jnp.bfloat16).astype(jnp.float32)
    upstream = jax.random.normal(keys[1], (size, 3 * size))
    upstream = upstream.astype(jnp.bfloat16).astype(jnp.float32)

    def rows(x, a, tile):
        part = x[:, tile * size : (tile + 1) * size]
        return [part[(a + i) * lanes : (a + i + 1) * lanes] for i in range(band.together)]

    def kernel(said, upstream, by_key, by_distance, carry, rest):
        rest[...] = jnp.zeros_like(rest)
        for a in range(0, n, band.together):
            band.by_key(a, rows(said, a, 0), carry)
            for tile in range(3):
                out = jnp.concatenate(band.by_key(a, rows(said, a, tile + 1), carry))
                back = band.by_distance(a, rows(upstream, a, tile), rest)
                at = pl.ds(a * lanes, band.together * lanes)
                by_key[at, pl.ds(tile * size, size)] = out
                by_distance[at, pl.ds(tile * size, size)] = jnp.concatenate(back)
            last = jnp.concatenate(band.by_distance(a, None, rest))
            by_distance[at, pl.ds(3 * size, size)] = last

    by_key, by_distance = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (upstream, said)],
        scratch_shapes=[band.carry(), band.carry()],
        interpret=True,
    )(said, upstream)

    def skewed(said):
        r, c = np.ogrid[:size, : 3 * size]
        return said[r, c - r + size]

    want, pull = jax.vjp(skewed, said)
    np.testing.assert_array_equal(by_key, want)
    np.testing.assert_array_equal(by_distance, pull(upstream)[0])


def test_calls_that_it_does_not_serve_are_refused_with_a_reason():
    half, short = (jnp.zeros((1, 1, 8, 8), dtype) for dtype in (jnp.float16, jnp.float32))
    with pytest.raises(NotImplementedError, match="bfloat16 or float32, not float16"):
        attention(half, half, half, pattern=Causal(), implementation="pallas_tpu")
    with (
        building_for("gpu", "NVIDIA H200"),
        pytest.raises(NotImplementedError, match="use pallas_gpu"),
    ):
        attention(short, short, short, pattern=Causal(), implementation="pallas_tpu")
