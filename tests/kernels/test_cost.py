"""The cost model, held to XLA's own count of operations and to pairs counted one by one."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention import Pattern, Places
from kernels.attention.reference import reference
from kernels.cost import Cost, attention_cost, live_tiles, useful_pairs
from longctx.attention.patterns import Causal, Full, Global, Local, Prefix, Strided
from longctx.attention.positions.relative import RelativeTerm

BATCH, HEADS, LENGTH, DIM = 2, 3, 256, 256
PATTERNS = [Causal(), Local(17), Local(9, 4), Full(), Strided(5), Prefix(11), Global(4)]
Q = jax.ShapeDtypeStruct((BATCH, HEADS, LENGTH, DIM), jnp.float32)


def count(function, *arguments) -> float:
    """Return the operations that XLA counts in a compiled function."""
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert analysis is not None
    return analysis["flops"]


def dense(q, k, v, table=None):
    """Return the reference over all pairs, with an embedding for each of `LENGTH` distances."""
    term = None if table is None else RelativeTerm(table, "clip")
    return reference(q, k, v, Full(), term, Places(), Places())[0]


@pytest.mark.parametrize("matmuls", [0, 1])
def test_operations_are_those_that_xla_counts_in_the_dense_reference(matmuls):
    cost = partial(attention_cost, Q, Q, 16, 64, 64, term_matmuls=matmuls)
    table = jax.ShapeDtypeStruct((HEADS, LENGTH, DIM), jnp.float32)
    inputs = (Q, Q, Q, table)[: 3 + matmuls]
    assert cost().flops == pytest.approx(count(dense, *inputs), rel=0.03)

    def gradients(*inputs):
        out, pull = jax.vjp(dense, *inputs)
        return out, pull(out)

    # The reference keeps its scores, so the backward pass does not compute them again.
    again = (1 + matmuls) * 2 * BATCH * HEADS * LENGTH**2 * DIM
    both = cost().flops + cost(backward=True).flops - again
    assert both == pytest.approx(count(gradients, *inputs), rel=0.03)


@pytest.mark.parametrize("lengths", [(70, 70), (33, 70), (600, 600)], ids=str)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_pairs_and_tiles_are_those_counted_one_by_one(pattern: Pattern, lengths):
    q_len, k_len = lengths
    q_pos, k_pos = np.arange(k_len)[k_len - q_len :, None], np.arange(k_len)[None]
    talks = np.broadcast_to(pattern.allows(q_pos, k_pos), lengths)
    assert useful_pairs(pattern, q_len, k_len) == talks.sum()
    padded = np.pad(talks, [(0, -q_len % 8), (0, -k_len % 4)])
    tiles = padded.reshape(padded.shape[0] // 8, 8, padded.shape[1] // 4, 4).any(axis=(1, 3))
    assert live_tiles(pattern, q_len, k_len, 8, 4) == tiles.sum()


def test_bytes_by_hand():
    """Two rows of the batch, four heads over one of keys, 16 tiles of 8 by 8, in bfloat16."""
    q = jax.ShapeDtypeStruct((2, 4, 32, 16), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((2, 1, 32, 16), jnp.bfloat16)
    q_bytes, tile, lse, table = 2 * 4 * 32 * 16 * 2, 8 * 16 * 2, 2 * 4 * 32 * 4, 4 * 64 * 16 * 4
    cost = partial(attention_cost, q, k, 16, 8, 8)
    assert cost().bytes == 2 * q_bytes + lse + 2 * 4 * 16 * 2 * tile
    assert cost(term_matmuls=1).bytes == cost().bytes + 2 * 4 * 16 * tile
    k_bytes = 2 * 1 * 32 * 16 * 2
    tiles = 2 * 4 * 16 * 3 * tile
    back = cost(term_matmuls=1, backward=True).bytes
    assert back == 3 * q_bytes + 2 * lse + tiles + 2 * k_bytes + table


def test_the_slower_of_computing_and_moving_decides():
    cost = Cost(flops=600, transcendentals=7, bytes=100)
    assert cost.intensity == 6
    assert cost.seconds(peak_flops=100, bandwidth=50) == 6
    assert cost.seconds(peak_flops=1000, bandwidth=50) == 2
    estimate = cost.estimate()
    assert (estimate.flops, estimate.transcendentals, estimate.bytes_accessed) == (600, 7, 100)
