"""The layers with a backward pass of their own, against autodiff of the plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from longctx.dense import matmul
from longctx.layers import gelu


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)], ids=str)
@pytest.mark.parametrize(
    ("ours", "plain"),
    [(matmul, jnp.matmul), (lambda x, w: gelu(x) @ w, lambda x, w: jax.nn.gelu(x) @ w)],
    ids=["matmul", "gelu"],
)
def test_value_and_gradients_are_those_of_the_plain_formula(ours, plain, shape):
    x = 3 * jax.random.normal(jax.random.key(0), (2, 4, shape[0]))
    weight = jax.random.normal(jax.random.key(1), shape)

    def loss(f):
        return lambda x, w: (jnp.sin(f(x, w))).sum()

    np.testing.assert_allclose(ours(x, weight), plain(x, weight), atol=1e-5)
    got = jax.grad(loss(ours), argnums=(0, 1))(x, weight)
    want = jax.grad(loss(plain), argnums=(0, 1))(x, weight)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
