"""Drawn calls of the Pallas kernels, interpreted on a CPU, against the float32 reference.

Tiles are small, so that a few dozen tokens cross several. A thousand calls are a slow proof.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from test_attention import Case, arrays, run
from test_pallas_gpu import SQUARE, TALL, WIDE

from kernels.attention import IMPLEMENTATIONS
from kernels.attention.pallas_gpu import pallas_gpu
from kernels.attention.pallas_gpu.plan import KernelBlocks
from kernels.attention.pallas_tpu.call import run as run_tpu
from kernels.attention.pallas_tpu.tile import Plan
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

pytestmark = pytest.mark.usefixtures("quick_compilation")
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2}
PATTERNS = [
    Causal(), Full(), Local(7), Local(20), Local(5, ahead=9), Prefix(11), Strided(6), Dilated(4, 3),
    Fixed(8, 2), Global(3) & Causal(), Local(4) | Dilated(3, 5), Local(9) & Strided(4),
]  # fmt: skip


def on_tpu(squares: int, longest: int):
    """Return the TPU kernel with tiles of some squares of 8 and a stretch of some tiles."""

    def call(q, k, v, pattern, term, q_at, k_at):
        plan = Plan(
            pattern, q.shape[2], k.shape[2], 8 * squares,
            lanes=8, longest=longest, interpret=True,
        )  # fmt: skip
        return run_tpu(plan, q, k, v, term, q_at, k_at)

    return call


def on_gpu(chosen: KernelBlocks):
    """Return the GPU kernel with these blocks."""
    return partial(pallas_gpu, chosen=chosen)


SETTINGS = {
    "pallas_tpu": [on_tpu(2, 99), on_tpu(1, 2), on_tpu(4, 1)],
    "pallas_gpu": [on_gpu(SQUARE), on_gpu(WIDE), on_gpu(TALL)],
}
"""For each kernel, itself with small tiles of several sizes."""


@st.composite
def cases(draw) -> Case:
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (1, 3), (2, 2)]))
    q_len = draw(st.integers(1, 40))
    k_len = q_len + draw(st.sampled_from([0, 0, 1, 7, 24]))
    tables = None
    if draw(st.integers(0, 3)):
        shared = draw(st.booleans())
        least = draw(st.integers(-40, 3))
        tables = 1 if shared else kv_heads * group, draw(st.integers(1, 70)), least
    return Case(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * group,
        kv_heads=kv_heads,
        q_len=q_len,
        k_len=k_len,
        dim=draw(st.sampled_from([16, 32])),
        pattern=draw(st.sampled_from(PATTERNS)),
        tables=tables,
        holds=draw(st.sampled_from(["embeddings", "embeddings", "bias", "bias embeddings"])),
        documents=min(q_len, draw(st.sampled_from([1, 1, 2, 3]))),
    )


def check(case: Case, dtype: str, serve) -> None:
    inputs = {name: x.astype(dtype) if name in "qkv" else x for name, x in arrays(case).items()}
    exact = {name: x.astype(jnp.float32) if name in "qkv" else x for name, x in inputs.items()}
    IMPLEMENTATIONS["drawn"] = serve
    try:
        (out, lse), grads = run(case, inputs, "drawn", explicit=False)
    finally:
        del IMPLEMENTATIONS["drawn"]
    (want_out, want_lse), want_grads = run(case, exact, "reference", explicit=False)
    tolerance = TOLERANCE[dtype]
    np.testing.assert_allclose(out.astype(jnp.float32), want_out, atol=tolerance)
    np.testing.assert_allclose(lse, want_lse, atol=tolerance, rtol=tolerance)
    paths = jax.tree_util.tree_leaves_with_path(grads)
    for (path, ours), theirs in zip(paths, jax.tree.leaves(want_grads), strict=True):
        least = natural_size(case, str(path)) if dtype == "bfloat16" else 1.0
        error = np.abs(ours.astype(jnp.float32) - theirs).max()
        assert error <= tolerance * max(least, np.abs(theirs).max()), path


def natural_size(case: Case, leaf: str) -> float:
    """Return how large a gradient is whose terms do not cancel, from unit normal arrays.

    A table's is a sum over queries, and rounding errors of n terms grow like their root whether or
    not the terms cancel, as they do where all keys share an entry. The terms of a bias are products
    of the upstream gradient and a value, of size `dim ** 0.5`.
    """
    if "entries" not in leaf:
        return 1.0
    shared = case.tables is not None and case.tables[0] == 1
    terms = case.batch * case.q_len * (case.heads if shared else 1)
    return (terms * case.dim) ** 0.5 if "bias" in leaf else terms**0.5


def check_drawn(name: str, count: int) -> None:
    done = 0

    @settings(
        max_examples=count, database=None, phases=[Phase.generate], derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        case=cases(),
        dtype=st.sampled_from(["float32", "float32", "bfloat16"]),
        serve=st.sampled_from(SETTINGS[name]),
    )
    def each(case, dtype, serve):
        nonlocal done
        check(case, dtype, serve)
        done += 1
        if done % 20 == 0:
            jax.clear_caches()  # a program for every call would fill the memory

    each()
    assert done >= count


@pytest.mark.parametrize("name", SETTINGS)
def test_some_drawn_calls_equal_the_reference(name):
    check_drawn(name, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_five_hundred_drawn_calls_equal_the_reference(name):
    check_drawn(name, 500)
