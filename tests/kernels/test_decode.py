"""Decoding: any number of pieces of the keys gives the reference's results and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention import Pattern, Places, attention
from kernels.attention.decode import MIN_KEYS, PROGRAMS
from kernels.platform import building_for
from longctx.attention.patterns import Causal, Local
from longctx.attention.positions.relative import RelativeTerm

pytestmark = pytest.mark.usefixtures("quick_compilation")
SLOTS = 6 * MIN_KEYS


def ring(last: int) -> jax.Array:
    """Return the position in each slot after token `last`: -1 where none has been."""
    slot = np.arange(SLOTS)
    return jnp.asarray(np.maximum(last - (last - slot) % SLOTS, -1))


def inputs(q_len: int = 1, kv_heads: int = 2) -> tuple:
    """Return (q, k, v, tables of embeddings and of values) for two rows and four heads."""
    keys = jax.random.split(jax.random.key(0), 4)
    q = jax.random.normal(keys[0], (2, 4, q_len, 8))
    k, v = jax.random.normal(keys[1], (2, 2, kv_heads, SLOTS, 8))
    return q, k, v, *jax.random.normal(keys[2], (2, 4, 50, 8))


def call(pattern: Pattern, q_pos, k_pos, implementation: str, q, k, v, *tables):
    """Return a weighted sum of the results, and the results."""
    term = RelativeTerm(tables[0], "clip", *tables[1:]) if tables else None
    with jax.default_matmul_precision("highest"):
        out, lse = attention(
            q, k, v, pattern=pattern, term=term, q_at=Places(q_pos), k_at=Places(k_pos),
            implementation=implementation, return_lse=True,
        )  # fmt: skip
    weights = jax.random.normal(jax.random.key(1), out.shape)
    seen = jnp.where(jnp.isfinite(lse), lse, 0.0)
    return (out * weights).sum() + (seen * weights[..., 0]).sum(), (out, lse)


def check(pattern: Pattern, q_pos, k_pos, arrays: tuple, atol: float = 1e-5) -> None:
    """Hold decode as built for a GPU, so in pieces, to the reference."""
    arguments = tuple(range(4, 4 + len(arrays)))
    graded = jax.value_and_grad(call, arguments, has_aux=True)
    graded = jax.jit(graded, static_argnums=(0, 3))
    want = graded(pattern, q_pos, k_pos, "reference", *arrays)
    with building_for("gpu"):
        ours = graded(pattern, q_pos, k_pos, "decode", *arrays)
        lowered = graded.lower(pattern, q_pos, k_pos, "decode", *arrays)
    assert f"2x{arrays[1].shape[1]}x6x" in lowered.as_text()  # in six pieces
    jax.tree.map(partial(np.testing.assert_allclose, atol=atol), ours, want)


@pytest.mark.parametrize("tables", [0, 1, 2])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_pieces_add_up_to_the_whole(kv_heads, tables):
    arrays = inputs(q_len=3, kv_heads=kv_heads)[: 3 + tables]
    q_pos = jnp.array([[700, 701, 702], [1200, 1201, 1202]])
    k_pos = jnp.stack([ring(702), ring(1202)])
    check(Causal(), q_pos, k_pos, arrays)


def test_a_ring_that_has_gone_round_and_empty_pieces():
    arrays = inputs()
    k_pos = jnp.stack([ring(5 * SLOTS + 77), ring(3)])
    check(Causal(), jnp.array([[5 * SLOTS + 77], [3]]), k_pos, arrays)
    check(Local(40), jnp.array([[5 * SLOTS + 77], [3]]), k_pos, arrays)


def test_a_row_that_is_padding_is_zero_and_pieces_of_very_low_scores_count():
    q, k, v = inputs()[:3]
    k = jnp.full_like(k, -100.0).at[:, :, MIN_KEYS:].set(0.0)
    q_pos, k_pos = jnp.array([[-1], [30]]), jnp.stack([ring(0), ring(30)])
    arrays = jnp.full_like(q, 10.0), k, v
    check(Causal(), q_pos, k_pos, arrays, atol=1e-3)  # scores are near -3000
    with building_for("gpu"):
        _, (out, lse) = call(Causal(), q_pos, k_pos, "decode", *arrays)
    assert not np.any(out[0])
    assert np.all(np.isneginf(lse[0]))
    assert np.all(lse[1] < -2000)


@pytest.mark.parametrize(
    ("platform", "batch", "slots", "pieces"),
    [
        ("gpu", 1, 128 * MIN_KEYS, PROGRAMS // 2),
        ("gpu", 4, 128 * MIN_KEYS, PROGRAMS // 8),
        ("gpu", 1, 5 * MIN_KEYS, 5),
        ("gpu", 1, 5 * MIN_KEYS + 3, 1),
        ("gpu", PROGRAMS, 64 * MIN_KEYS, 1),
        ("tpu", 1, 128 * MIN_KEYS, 1),
        ("cpu", 1, 128 * MIN_KEYS, 1),
    ],
)
def test_keys_are_split_where_a_gpu_would_be_idle(platform, batch, slots, pieces):
    q = jax.ShapeDtypeStruct((batch, 2, 1, 8), jnp.float32)
    k = jax.ShapeDtypeStruct((batch, 2, slots, 8), jnp.float32)
    q_pos, k_pos = jnp.zeros((1, 1), int), jnp.zeros((1, slots), int)
    with building_for(platform):
        lowered = jax.jit(partial(call, Causal(), q_pos, k_pos, "decode")).lower(q, k, k)
    assert f"tensor<{batch}x2x{pieces}x{slots // pieces}x8x" in lowered.as_text()
