"""What attention keeps while it runs, by the compiler's own account."""

import jax
import jax.numpy as jnp

from kernels.attention import attention
from longctx.attention.patterns import Causal
from longctx.attention.positions.relative import RelativeTerm


def temporary_bytes(implementation: str, length: int) -> int:
    """Return the compiler's own account of forward and backward with a relative term."""
    shape = jax.ShapeDtypeStruct((1, 1, length, 16), jnp.float32)
    table = jax.ShapeDtypeStruct((1, length, 16), jnp.float32)

    def loss(q, k, v, table):
        term = RelativeTerm(table, "clip")
        return attention(q, k, v, pattern=Causal(), term=term, implementation=implementation).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(shape, shape, shape, table)
    return compiled.compile().memory_analysis().temp_size_in_bytes


def test_blockwise_memory_grows_with_the_length_not_its_square():
    assert temporary_bytes("blockwise", 2048) <= 2.2 * temporary_bytes("blockwise", 1024)


def test_row_blocks_keeps_a_fixed_number_of_tiles():
    """16 blocks of 128 rows; were all in flight at once, it would be 48 tiles."""
    tile = 128 * 2048 * 4
    assert temporary_bytes("row_blocks", 2048) <= 24 * tile
