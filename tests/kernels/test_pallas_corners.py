"""Corner cases of the Pallas kernels, interpreted on a CPU, against the float32 reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_attention import Case, Tables, arrays
from test_drawn_calls import SETTINGS, check, on_tpu

from kernels.attention import IMPLEMENTATIONS, Entries, Places, attention
from kernels.attention.pallas_tpu.call import run as run_tpu
from kernels.attention.pallas_tpu.tile import Plan
from longctx.attention.patterns import Causal, Full

pytestmark = pytest.mark.usefixtures("quick_compilation")
KERNELS = sorted(SETTINGS)


@pytest.fixture(params=KERNELS)
def kernel(request, monkeypatch) -> str:
    """Return the name of a kernel, which has small tiles here."""
    monkeypatch.setitem(IMPLEMENTATIONS, request.param, SETTINGS[request.param][0])
    return request.param


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tile_may_have_an_odd_number_of_squares(dtype):
    """As for 257 to 384 tokens on most TPUs."""
    case = Case(1, 2, 1, 40, 48, 16, Causal(), (2, 50, 0), "embeddings")
    check(case, dtype, on_tpu(squares=3, longest=1))


def test_the_dim_may_be_no_multiple_of_the_lanes():
    """As dim 192 on TPUs."""
    case = Case(1, 2, 1, 20, 20, 20, Causal(), (2, 30, 0), "embeddings")
    check(case, "float32", on_tpu(squares=2, longest=1))


@pytest.mark.parametrize("shared", ["queries", "keys"])
def test_only_queries_or_only_keys_may_share_segments(kernel, shared):
    inputs = arrays(Case(2, 2, 1, 20, 30, 16, Causal()))
    segments = jnp.stack([jnp.arange(30) // 13, jnp.arange(30) // 21])
    q_at, k_at = Places(segments=segments[:, 10:]), Places(segments=segments)
    if shared == "queries":
        q_at = Places(segments=segments[:1, 10:])
    else:
        k_at = Places(segments=segments[:1])

    def call(implementation):
        return attention(
            inputs["q"], inputs["k"], inputs["v"], pattern=Causal(), q_at=q_at, k_at=k_at,
            implementation=implementation,
        )  # fmt: skip

    np.testing.assert_allclose(call(kernel), call("reference"), atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 9, 16), (1, 9, 8)], ids=["tables", "dim"])
def test_tables_that_do_not_fit_are_refused(kernel, shape):
    q = jnp.zeros((1, 4, 9, 16))
    term = Tables(Entries(embeddings=jnp.zeros(shape)), 0)
    with pytest.raises(ValueError, match="must"):
        attention(q, q, q, pattern=Causal(), term=term, implementation=kernel)


def test_too_many_tiles_for_scalar_memory_are_refused():
    length = 128 * 512
    plan = Plan(Full(), length, length, 128, interpret=True)
    q = jax.ShapeDtypeStruct((1, 1, length, 16), jnp.float32)
    with pytest.raises(NotImplementedError, match="holds 260000, not 262144"):
        jax.eval_shape(lambda q: run_tpu(plan, q, q, q, None, Places(), Places()), q)


@pytest.mark.parametrize("name", [*KERNELS, "blockwise", "row_blocks"])
def test_a_query_that_is_nan_has_nan_for_its_output_and_its_logsumexp(name):
    inputs = arrays(Case(1, 2, 1, 20, 20, 16, Causal()))
    q = inputs["q"].at[0, 1, 5].set(jnp.nan)
    out, lse = attention(
        q, inputs["k"], inputs["v"], pattern=Causal(), return_lse=True, implementation=name
    )
    assert np.argwhere(np.isnan(lse)).tolist() == [[0, 1, 5]]
    assert np.all(np.isnan(out[0, 1, 5]))
    assert np.isfinite(out).sum() == out.size - 16


@pytest.mark.parametrize("scale", [np.float64(0.25), jnp.float32(0.25)], ids=["numpy", "jax"])
@pytest.mark.usefixtures("unchecked_shapes")
def test_a_scale_keeps_the_dtype(kernel, scale):
    inputs = arrays(Case(1, 2, 1, 20, 20, 16, Causal()), jnp.bfloat16)
    out = attention(
        inputs["q"], inputs["k"], inputs["v"], pattern=Causal(), scale=scale, implementation=kernel
    )
    assert jnp.asarray(out).dtype == jnp.bfloat16
