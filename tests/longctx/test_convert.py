"""From MHA to GQA: which heads are pooled, what stays, and what is refused."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from longctx.attention.convert import mha_to_gqa
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import RelativeEmbedding, RoPE
from longctx.mixers.lstm import LSTM
from longctx.transformer import Transformer

pytestmark = pytest.mark.usefixtures("quick_compilation")
RELATIVE = Attention(heads=4, position=RelativeEmbedding(max_distance=9))
ROTARY = Attention(heads=4, kv_heads=4, position=RoPE(), pattern=Local(5), qk_norm=True)
CONFIG = Transformer(layers=2, model=16, hidden=32, mixer=(RELATIVE, ROTARY), dropout=0.0)
VOCAB = 13


def built(config: Transformer) -> tuple[nnx.GraphDef, nnx.State]:
    return nnx.split(config.build(VOCAB, jnp.float32, seed=0))


def by_path(params: nnx.State) -> dict[tuple, np.ndarray]:
    return {path: np.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(params)}


def is_pooled(path: tuple) -> bool:
    return path[0] == "blocks" and path[-3] == "mixer" and path[-2] in ("k", "v")


def logits(config: Transformer, params: nnx.State) -> jax.Array:
    tokens = jax.random.randint(jax.random.key(0), (2, 20), 0, VOCAB)
    graphdef, _ = built(config)
    return jax.jit(lambda params: nnx.merge(graphdef, params)(tokens)[0])(params)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_each_group_is_pooled_and_all_else_stays(kv_heads):
    before = built(CONFIG)[1]
    config, after = mha_to_gqa(CONFIG, before, kv_heads)
    assert [mixer.kv_heads for mixer in config.mixers] == [kv_heads] * 2
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, built(config)[1])
    old, new = by_path(before), by_path(after)
    assert sum(map(is_pooled, new)) == 4
    for path, value in new.items():
        if is_pooled(path):
            heads = np.split(old[path], 4, axis=1)
            group = 4 // kv_heads
            means = [np.mean(heads[i : i + group], axis=0) for i in range(0, 4, group)]
            np.testing.assert_allclose(value, np.concatenate(means, axis=1), rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(value, old[path])


@pytest.mark.parametrize("mixer", [RELATIVE, ROTARY], ids=["relative", "rotary"])
def test_heads_that_are_equal_in_their_group_change_no_logit(mixer):
    config = replace(CONFIG, mixer=mixer)
    flat = dict(nnx.to_flat_state(built(config)[1]))
    for path in filter(is_pooled, flat):
        first, _, third, _ = np.split(np.asarray(flat[path][...]), 4, axis=1)
        equal = np.concatenate([first, first, third, third], axis=1)
        flat[path] = flat[path].replace(jnp.asarray(equal))
    params = nnx.from_flat_state(flat)
    smaller, pooled = mha_to_gqa(config, params, 2)
    for path, kernel in filter(lambda item: is_pooled(item[0]), by_path(pooled).items()):
        first, _, third, _ = np.split(by_path(params)[path], 4, axis=1)
        np.testing.assert_array_equal(kernel, np.concatenate([first, third], axis=1))
    np.testing.assert_allclose(logits(smaller, pooled), logits(config, params), atol=1e-5)


def test_the_result_can_be_trained_on():
    config, params = mha_to_gqa(CONFIG, built(CONFIG)[1], 2)
    grads = jax.grad(lambda p: (logits(config, p) ** 2).sum())(params)
    for path, grad in by_path(grads).items():
        assert np.isfinite(grad).all(), path
        assert np.any(grad), path


def test_what_has_no_heads_to_pool_is_refused():
    params = built(CONFIG)[1]
    with pytest.raises(ValueError, match="kv_heads 3 must divide the 4 heads"):
        mha_to_gqa(CONFIG, params, 3)
    with pytest.raises(ValueError, match="kv_heads 0 must divide"):
        mha_to_gqa(CONFIG, params, 0)
    with pytest.raises(ValueError, match="2 key-value heads for 4 heads: only multi-head"):
        mha_to_gqa(replace(CONFIG, mixer=replace(RELATIVE, kv_heads=2)), params, 2)
    with pytest.raises(ValueError, match="LSTM has no heads"):
        mha_to_gqa(replace(CONFIG, mixer=LSTM()), params, 2)
