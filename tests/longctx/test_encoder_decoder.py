"""The encoder-decoder, and its four switches: each alone, and all of them as a decoder-only one."""

from functools import cache
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places
from longctx.attention.layer import Attention
from longctx.attention.patterns import Full, Local
from longctx.attention.positions import NoPosition, RelativeEmbedding, RoPE, Sinusoidal
from longctx.encoder_decoder import EncoderDecoder
from longctx.generate import generate
from longctx.sampling import Sampler
from longctx.transformer import Transformer

SWITCHES = ("share_cross_self", "share_encoder_decoder", "align_layers", "causal_encoder")
SETTINGS = {"none": {}, **{name: {name: True} for name in SWITCHES}}
SETTINGS["all"] = dict.fromkeys(SWITCHES, True)
MIXERS = {
    "relative": Attention(heads=4, position=RelativeEmbedding(max_distance=9)),
    "gqa_rope": Attention(heads=4, kv_heads=2, position=RoPE(), qk_norm=True),
    "sinusoidal_local": Attention(heads=4, position=Sinusoidal(), pattern=Local(7)),
}
SOURCE, LENGTH, VOCAB = 12, 30, 13

every_setting = pytest.mark.parametrize("setting", SETTINGS)


def config(setting: str, mixer: str = "relative", **fields) -> EncoderDecoder:
    return EncoderDecoder(
        encoder_layers=2, decoder_layers=2, model=16, hidden=32, dropout=0.0,
        source=SOURCE, mixer=MIXERS[mixer], **SETTINGS[setting], **fields,
    )  # fmt: skip


class Compiled:
    """A model whose pass is compiled once for each shape."""

    def __init__(self, config: EncoderDecoder | Transformer):
        self.graphdef, self.params = nnx.split(config.build(VOCAB, jnp.float32, seed=0))
        self._call = jax.jit(lambda p, x, at, state: nnx.merge(self.graphdef, p)(x, at, state))
        self.model = nnx.merge(self.graphdef, self.params)

    def __call__(self, x, at=Places(), state=None):
        return self._call(self.params, x, at, state)


@cache
def build(setting: str, mixer: str = "relative") -> Compiled:
    return Compiled(config(setting, mixer))


def tokens(rows: int = 2, seed: int = 0) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, LENGTH), 0, VOCAB)


def changed(x: jax.Array, start: int, end: int | None = None) -> jax.Array:
    """Return the tokens with other ones in [start, end)."""
    return x.at[:, start:end].set((x[:, start:end] + 1) % VOCAB)


def count(params: nnx.State) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def names(params: nnx.State) -> list[str]:
    flat = jax.tree_util.tree_leaves_with_path(params)
    return ["".join(f".{getattr(key, 'key', key)}" for key in path) for path, _ in flat]


def target_loss(graphdef, params, x):
    return (nnx.merge(graphdef, params)(x)[0][:, SOURCE:] ** 2).sum()


@pytest.mark.parametrize("mixer", MIXERS)
def test_all_four_switches_leave_the_decoder_only_model(mixer):
    """Logits of the target and gradients, with the parameters copied over."""
    whole = build("all", mixer)
    plain = Compiled(config("all", mixer).decoder_only)
    assert names(whole.params) == [f".decoder{name}" for name in names(plain.params)]
    params = jax.tree.unflatten(jax.tree.structure(whole.params), jax.tree.leaves(plain.params))
    x = tokens()
    got = whole._call(params, x, Places(), None)[0]
    np.testing.assert_array_equal(got[:, :SOURCE], 0.0)
    np.testing.assert_allclose(got[:, SOURCE:], plain(x)[0][:, SOURCE:], atol=1e-5)

    grad = jax.jit(jax.grad(target_loss, argnums=1), static_argnums=0)
    got, want = grad(whole.graphdef, params, x), grad(plain.graphdef, plain.params, x)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(jnp.abs(b).max()))


@every_setting
def test_every_parameter_gets_a_gradient(setting):
    model = build(setting)
    grad = jax.jit(jax.grad(lambda p, x: target_loss(model.graphdef, p, x)))
    for path, leaf in jax.tree_util.tree_leaves_with_path(grad(model.params, tokens())):
        assert np.isfinite(leaf).all(), path
        assert np.any(leaf), path


@pytest.mark.parametrize(
    ("setting", "mixer"),
    [*((setting, "relative") for setting in SETTINGS), ("none", "gqa_rope"),
     ("none", "sinusoidal_local"), ("all", "sinusoidal_local")],
)  # fmt: skip
def test_any_chunking_gives_the_whole(setting, mixer):
    x, model = tokens(), build(setting, mixer)
    whole, nothing = model(x)
    assert nothing is None
    state, parts = model.model.init_state(2, LENGTH), []
    cuts = (SOURCE + 1, SOURCE + 2, SOURCE + 11)
    for start, end in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        part, state = model(x[:, start:end], state=state)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-5)
    np.testing.assert_array_equal(state.decoder.length, LENGTH)
