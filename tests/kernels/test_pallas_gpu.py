"""The GPU kernels, interpreted on a CPU, against the float32 reference."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention import IMPLEMENTATIONS, Entries, Places, attention
from kernels.attention.pallas_gpu import pallas_gpu
from kernels.attention.pallas_gpu.choice import blocks
from kernels.attention.pallas_gpu.plan import (
    Blocks,
    KernelBlocks,
    Plan,
    Schedule,
    column_schedule,
    distances,
    row_schedule,
    term_schedule,
)
from kernels.platform import building_for
from kernels.targets import TARGETS
from longctx.attention.patterns import (
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Local,
    Prefix,
    Strided,
)
from tests.kernels.test_attention import CASES, Case, Tables, arrays, relative_error, run

pytestmark = pytest.mark.usefixtures("quick_compilation")

SQUARE = KernelBlocks(*[Blocks(16, 16)] * 4)
WIDE = KernelBlocks(Blocks(32, 16), Blocks(32, 16), Blocks(16, 32), Blocks(16, 32))
TALL = KernelBlocks(Blocks(16, 32), Blocks(16, 32), Blocks(32, 16), Blocks(32, 16))
LARGE = KernelBlocks(*[Blocks(64, 32)] * 4)

CALLS = [
    (Case(2, 2, 2, 70, 70, 16, Causal()), SQUARE),
    (Case(2, 4, 2, 50, 70, 16, Causal(), (4, 40, 0)), WIDE),
    (Case(1, 2, 2, 60, 60, 8, Local(40), (1, 60, -2), "bias embeddings", documents=2), TALL),
    (Case(1, 4, 1, 40, 75, 16, Prefix(30), (4, 70, -25), "bias"), SQUARE),
]
MORE_CALLS = [
    (Case(1, 4, 2, 50, 90, 16, Causal(), (1, 95, 0), documents=3), WIDE),
    (Case(1, 2, 1, 57, 57, 8, Local(17), (2, 9, 0)), SQUARE),
    (Case(1, 1, 1, 1, 1, 8, Causal(), (1, 1, 0), "bias"), SQUARE),
    (Case(1, 2, 1, 45, 61, 16, Strided(20), (1, 70, -5)), TALL),
    *((case, LARGE) for case in CASES if "values" not in case.holds),
]
PATTERNS = [
    *Dilated.small(), *Fixed.small(), *Full.small(), *Strided.small(), Local(5, ahead=20),
    Global(3) & Causal(), Local(4) | Dilated(3, 5), Global(3),
]  # fmt: skip
CENTRAL = [Dilated(4, 3), Fixed(8, 2), Full(), Global(3) & Causal(), Local(5, 20) | Strided(6)]


@pytest.fixture
def serve(monkeypatch):
    """Return a function that has calls of "pallas_gpu" served with given blocks."""

    def with_blocks(chosen: KernelBlocks) -> str:
        monkeypatch.setitem(IMPLEMENTATIONS, "pallas_gpu", partial(pallas_gpu, chosen=chosen))
        return "pallas_gpu"

    return with_blocks


def check(case: Case, implementation: str) -> None:
    inputs = arrays(case)
    (out, lse), grads = run(case, inputs, implementation, explicit=False)
    (want_out, want_lse), want_grads = run(case, inputs, "reference", explicit=False)
    np.testing.assert_allclose(out, want_out, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)
    assert grads.keys() == want_grads.keys()
    paths = jax.tree_util.tree_leaves_with_path(grads)
    for (path, ours), theirs in zip(paths, jax.tree.leaves(want_grads), strict=True):
        assert relative_error(ours, theirs) <= 1e-5, path


@pytest.mark.parametrize(("case", "chosen"), CALLS, ids=str)
def test_equals_reference(case, chosen, serve):
    check(case, serve(chosen))


@pytest.mark.slow
@pytest.mark.parametrize(("case", "chosen"), MORE_CALLS, ids=str)
def test_equals_reference_in_more_calls(case, chosen, serve):
    check(case, serve(chosen))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_every_pattern_has_the_gradients_of_the_reference(pattern, serve):
    check(Case(1, 2, 1, 57, 90, 16, pattern, (2, 150, -60), "bias embeddings"), serve(WIDE))


@pytest.mark.parametrize("pattern", CENTRAL, ids=str)
def test_patterns_equal_reference(pattern):
    inputs = arrays(Case(1, 2, 1, 57, 90, 16, pattern, (2, 150, -60)))
    term = Tables(inputs["entries"], -60)
    ours = jax.jit(lambda q, k, v: pallas_gpu(q, k, v, pattern, term, Places(), Places(), SQUARE))
    out, lse = ours(inputs["q"] / 4, inputs["k"], inputs["v"])
    want, want_lse = attention(
        inputs["q"], inputs["k"], inputs["v"], pattern=pattern, term=term, return_lse=True,
        implementation="reference",
    )  # fmt: skip
    np.testing.assert_allclose(out, want, atol=1e-5)
    np.testing.assert_allclose(lse, want_lse, atol=1e-5)


def test_a_program_may_do_several_items(serve, monkeypatch):
    monkeypatch.setattr("kernels.attention.pallas_gpu.tile.PROGRAMS", 3)
    check(Case(1, 2, 1, 60, 60, 16, Causal(), (2, 40, 0)), serve(SQUARE))


def test_bfloat16_stays_near_the_float32_reference(serve):
    case = Case(1, 2, 1, 70, 70, 16, Causal(), (2, 40, 0))
    inputs = arrays(case, jnp.bfloat16)
    (out, _), grads = run(case, inputs, serve(WIDE), explicit=False)
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), inputs)
    (want, _), want_grads = run(case, exact, "reference", explicit=False)
    assert out.dtype == jnp.bfloat16
    assert relative_error(out, want) <= 2e-2
    for ours, theirs in zip(jax.tree.leaves(grads), jax.tree.leaves(want_grads), strict=True):
        assert relative_error(ours, theirs) <= 2e-2


def test_a_row_without_keys_is_zero_forward_and_backward(serve):
    inputs = arrays(Case(1, 2, 2, 20, 40, 16, Causal(), (2, 30, 0), "bias embeddings"))
    k_at = Places(segments=jnp.arange(40)[None] // 20)
    q_at = Places(segments=jnp.where(jnp.arange(20) < 7, 5, 1)[None])
    implementation = serve(SQUARE)

    def weighted(inputs):
        out, lse = attention(
            inputs["q"], inputs["k"], inputs["v"], pattern=Causal(), q_at=q_at, k_at=k_at,
            term=Tables(inputs["entries"], 0), return_lse=True, implementation=implementation,
        )  # fmt: skip
        return (out**2).sum(), (out, lse)

    (_, (out, lse)), grads = jax.jit(jax.value_and_grad(weighted, has_aux=True))(inputs)
    assert not np.any(out[:, :, :7])
    assert np.all(np.isneginf(lse[:, :, :7]))
    assert not np.any(grads["q"][:, :, :7])
    assert not np.any(grads["k"][:, :, :20])
    assert not np.any(grads["v"][:, :, :20])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))
    assert np.all(np.any(out[:, :, 7:], axis=-1))


def pairs(schedule: Schedule, rows: int, columns: int) -> np.ndarray:
    """Return how often each pair is in a tile, and in a tile without a mask."""
    counts = np.zeros((2, len(schedule.counts) * rows, schedule.runs.max() * columns), int)
    for i, (full, every) in enumerate(schedule.counts):
        for t in range(every):
            start, stop = schedule.runs[i, t] * columns
            counts[: 1 + (t < full), i * rows : (i + 1) * rows, start:stop] += 1
    return counts


@pytest.mark.parametrize("chosen", [SQUARE, WIDE, TALL], ids=["square", "wide", "tall"])
@pytest.mark.parametrize("pattern", [Causal(), Local(17), Local(4, 30), *PATTERNS], ids=str)
def test_tiles_hold_each_allowed_pair_once(pattern, chosen):
    plan = Plan(pattern, 70, 100, chosen)
    i, c = np.ogrid[:70, :100]
    allowed = np.broadcast_to(pattern.allows(plan.offset + i, c), (70, 100))

    def check_tiles(every, full):
        assert every.max() == 1
        assert np.all(every[allowed] == 1)
        assert not np.any(full[~allowed])

    shape = np.zeros((2, plan.q_padded, plan.k_padded), int)
    tiles = pairs(row_schedule(plan, chosen.forward), *chosen.forward[:2])
    shape[:, :, : tiles.shape[2]] = tiles
    check_tiles(*shape[:, :70, :100])
    shape[:] = 0
    blocks = chosen.backward_kv
    tiles = pairs(column_schedule(plan, blocks), blocks.columns, blocks.rows).swapaxes(1, 2)
    shape[:, : tiles.shape[1]] = tiles
    check_tiles(*shape[:, :70, :100])
    shape[:] = 0
    blocks = chosen.backward_term
    of_parts = pairs(term_schedule(plan, blocks, 2), blocks.columns, blocks.rows)
    tiles = of_parts.reshape(2, 2, -1, of_parts.shape[2]).sum(axis=1)
    u, row = np.ogrid[: tiles.shape[1], : tiles.shape[2]]
    column = plan.offset + row - distances(plan)[u]
    there = (column >= 0) & (column < 100) & (row < 70)
    assert not np.any(tiles[1] * ~((column >= 0) & (column < 100)))
    row = np.broadcast_to(row, column.shape)
    shape[:, row[there], column[there]] = tiles[:, there]
    check_tiles(*shape[:, :70, :100])


@pytest.mark.parametrize("pattern", [Causal(), Prefix(30), *CENTRAL], ids=str)
def test_lowers_for_gpus(pattern):
    q, k = jnp.zeros((1, 4, 256, 64), jnp.bfloat16), jnp.zeros((1, 2, 256, 64), jnp.bfloat16)
    entries = Entries(jnp.zeros((4, 100, 64)), jnp.zeros((4, 100)))
    at = Places(segments=jnp.zeros((1, 256), jnp.int32))

    def total(q, k, v, entries):
        out, lse = pallas_gpu(q, k, v, pattern, Tables(entries, 0), at, at)
        return out.astype(jnp.float32).sum() + lse.sum()

    with building_for("gpu", "NVIDIA H200"), TARGETS["h200"].tracing():
        traced = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3))).trace(q, k, k, entries)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for kernel in ("forward", "backward_q", "backward_kv", "backward_term"):
        assert f"attention_{kernel}" in text


@pytest.mark.parametrize("holds", ["", "bias", "embeddings", "bias embeddings"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
@pytest.mark.parametrize("dim", [16, 32, 64, 128])
def test_blocks_are_what_kernels_need(dim, dtype, holds):
    chosen = blocks(dim, dtype, Entries(**{name: jnp.zeros(1) for name in holds.split()}))
    for kernel in chosen:
        for size in kernel[:2]:
            assert size >= 16
            assert size & (size - 1) == 0
        assert kernel.stages == 1 or "embeddings" not in holds
    assert chosen.backward_term.stages == 1 or not holds


def test_refuses_what_it_does_not_serve(serve):
    implementation = serve(SQUARE)
    q = jnp.zeros((1, 2, 6, 16))
    call = partial(attention, pattern=Causal(), implementation=implementation)
    with pytest.raises(NotImplementedError, match="consecutive positions"):
        call(q, q, q, q_at=Places(positions=jnp.arange(6)[None]))
    values = Tables(Entries(values=jnp.zeros((2, 3, 16))), 0)
    with pytest.raises(NotImplementedError, match="add to scores alone"):
        call(q, q, q, term=values)
    large = jnp.zeros((1, 2, 6, 256))
    with pytest.raises(NotImplementedError, match="up to 128, not 256"):
        call(large, large, large)
    with building_for("tpu", "TPU v6 lite"), pytest.raises(NotImplementedError, match="not tpu"):
        call(q, q, q)
    half = q.astype(jnp.float16)
    with pytest.raises(NotImplementedError, match="not float16"):
        call(half, half, half)
