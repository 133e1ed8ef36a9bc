"""Recomputing changes memory and nothing else."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx.attention.layer import Attention
from longctx.attention.patterns import Recurrent
from longctx.attention.positions import RelativeEmbedding
from longctx.mixers import Routing, TransformerXL
from longctx.transformer import Transformer


def grads_and_temp(config: Transformer, length: int):
    """Return loss and gradients of a pass with dropout, and XLA's temporary bytes for it."""
    graphdef, params = nnx.split(config.build(11, jnp.float32, seed=0))
    tokens = jax.random.randint(jax.random.key(1), (2, length), 0, 11)

    def loss(params):
        return (nnx.merge(graphdef, params)(tokens, dropout_key=jax.random.key(2))[0] ** 2).mean()

    compiled = jax.jit(jax.value_and_grad(loss)).lower(params).compile()
    return compiled(params), compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("implementation", ["row_blocks", "blockwise"])
def test_the_gradient_is_the_same_and_less_is_kept(implementation):
    mixer = Attention(
        heads=2, position=RelativeEmbedding(max_distance=64), implementation=implementation
    )
    plain = Transformer(layers=5, model=32, hidden=128, mixer=mixer, dropout=0.2)
    (loss, grads), temp = grads_and_temp(plain, 256)
    (loss_again, grads_again), less = grads_and_temp(replace(plain, remat=True), 256)
    np.testing.assert_allclose(loss, loss_again, rtol=1e-6)
    for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_again), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max(), rtol=1e-4)
    assert less < 0.5 * temp


def test_what_layers_carry_and_tell_is_the_same():
    xl = TransformerXL(heads=2, position=RelativeEmbedding(9), pattern=Recurrent(8, 8))
    routing = Routing(heads=2, local_heads=1, clusters=3, window=8)
    plain = Transformer(layers=4, model=8, hidden=8, mixer=(xl, xl, routing, routing), dropout=0.0)
    tokens = jax.random.randint(jax.random.key(1), (2, 24), 0, 11)

    def two_batches(config: Transformer):
        model = config.build(11, jnp.float32, seed=0)
        state = model.training_state(2)
        first, state = model(tokens[:, :12], state=state)
        second, state = model(tokens[:, 12:], state=state)
        return first, second, state, model.told(state)

    ours, theirs = two_batches(plain), two_batches(replace(plain, remat=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
