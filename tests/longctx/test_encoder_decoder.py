"""The encoder-decoder, and its four switches: each alone, and all of them as a decoder-only one."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places
from longctx.attention.layer import Attention
from longctx.attention.patterns import Full, Local
from longctx.attention.positions import RelativeEmbedding, RoPE, Sinusoidal
from longctx.encoder_decoder import EncoderDecoder
from longctx.generate import STAGE, generate
from longctx.sampling import Sampler
from longctx.transformer import Transformer

pytestmark = pytest.mark.usefixtures("quick_compilation")
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
    np.testing.assert_array_equal(state.length, LENGTH)


@every_setting
def test_the_target_sees_the_source_and_never_its_own_future(setting):
    x, model = tokens(), build(setting)
    before = model(x)[0]
    later = model(changed(x, 20))[0]
    assert jnp.array_equal(before[:, :20], later[:, :20])
    assert not jnp.array_equal(before[:, 20:], later[:, 20:])
    for place in (0, SOURCE - 1):
        other = model(changed(x, place, place + 1))[0]
        assert jnp.all(jnp.any(before != other, axis=-1)[:, SOURCE:])


@every_setting
def test_batch_rows_do_not_see_each_other(setting):
    x, model = tokens(), build(setting)
    other = x.at[1].set((x[1] + 1) % VOCAB)
    np.testing.assert_array_equal(model(x)[0][0], model(other)[0][0])


def test_each_switch_takes_away_the_parameters_that_it_makes_needless():
    """Layers of width 16 and 32: attention has 4 d^2 and a table, feed-forward 2 d h, a norm d."""
    norm, attention, table, feed = 16, 4 * 16**2, 4 * 9 * 4, 2 * 16 * 32
    block = attention + table + feed + 2 * norm
    saved = {
        "share_cross_self": 2 * (attention + norm),
        "share_encoder_decoder": 2 * block + norm,
        "align_layers": block,
        "causal_encoder": 0,
        "all": 2 * (attention + norm) + 2 * block + norm,
    }
    full = count(build("none").params)
    assert {name: full - count(build(name).params) for name in saved} == saved


def read(setting: str, x: jax.Array) -> list[jax.Array]:
    """Return what the decoder's layers read of the source."""
    model = build(setting).model
    embedded = model.decoder.embedded(x[:, :SOURCE], jnp.arange(SOURCE)[None], None)
    return model.encode(embedded, Places(), None)


@pytest.mark.parametrize("setting", ["none", "share_encoder_decoder", "causal_encoder"])
def test_only_a_causal_encoder_keeps_the_future_from_the_source(setting):
    x = tokens()
    before, after = read(setting, x)[-1], read(setting, changed(x, 7, 8))[-1]
    assert not jnp.array_equal(before[:, 7], after[:, 7])
    assert jnp.array_equal(before[:, :7], after[:, :7]) == (setting == "causal_encoder")


def test_an_aligned_layer_reads_what_the_encoder_layer_beside_it_attends_to():
    x = tokens()
    first, second = read("align_layers", x)
    other_first, other_second = read("align_layers", changed(x, 7, 8))
    differs = jnp.any(first != other_first, axis=(0, 2))
    np.testing.assert_array_equal(np.flatnonzero(differs), [7])  # nothing was mixed yet
    assert jnp.any(second != other_second, axis=(0, 2)).all()
    first, second = read("none", x)
    np.testing.assert_array_equal(first, second)


def plain_encoder_decoder(params: dict, x: jax.Array) -> jax.Array:
    """Return the logits of the target: Vaswani et al. 2017, pre-norm, one head, no positions."""

    def norm(p, x):
        x = x - x.mean(axis=-1, keepdims=True)
        return x / jnp.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6) * p["scale"]

    def attend(p, x, memory, allowed):
        q, k, v = x @ p["q"]["kernel"], memory @ p["k"]["kernel"], memory @ p["v"]["kernel"]
        scores = jnp.where(allowed, q @ k.swapaxes(1, 2) / 16**0.5, -jnp.inf)
        return jax.nn.softmax(scores) @ v @ p["out"]["kernel"]

    def feed(p, x):
        return (
            jax.nn.gelu(norm(p["feed_norm"], x) @ p["feed"]["up"]["kernel"])
            @ (p["feed"]["down"]["kernel"])
        )

    embedded = params["decoder"]["embed"]["embedding"][x] * 16**0.5
    memory, y = embedded[:, :SOURCE], embedded[:, SOURCE:]
    for block in params["encoder"].values():
        inner = norm(block["mixer_norm"], memory)
        memory = memory + attend(block["mixer"], inner, inner, True)
        memory = memory + feed(block, memory)
    memory = norm(params["encoder_norm"], memory)
    causal = jnp.tri(y.shape[1], dtype=bool)
    for block, cross in zip(
        params["decoder"]["blocks"].values(), params["cross"].values(), strict=True
    ):
        inner = norm(block["mixer_norm"], y)
        y = y + attend(block["mixer"], inner, inner, causal)
        y = y + attend(cross["attention"], norm(cross["norm"], y), memory, True)
        y = y + feed(block, y)
    return norm(params["decoder"]["norm"], y) @ params["decoder"]["embed"]["embedding"].T


def test_without_a_switch_it_is_the_textbook_model():
    model = Compiled(replace(config("none"), mixer=Attention(heads=1)))
    x = tokens()
    want = plain_encoder_decoder(nnx.to_pure_dict(model.params), x)
    np.testing.assert_allclose(model(x)[0][:, SOURCE:], want, atol=1e-5)


@pytest.mark.parametrize("setting", ["none", "all"])
def test_greedy_generation_is_the_argmax_of_the_full_pass(setting):
    """Over prompts of different lengths, several chunks and a grown cache."""
    model = build(setting)
    prompts = [np.asarray(row[:n]) for row, n in zip(tokens(), (SOURCE + 1, 20), strict=True)]
    rows = generate(
        model.graphdef, model.params, prompts, length=STAGE, boundary=-1,
        sampler=Sampler(temperature=0.0),
    )  # fmt: skip
    for prompt, row in zip(prompts, rows, strict=True):
        whole = np.concatenate([prompt, row])
        chosen = np.asarray(model(jnp.asarray(whole[None]))[0][0])[len(prompt) - 1 : -1]
        np.testing.assert_allclose(chosen[np.arange(STAGE), row], chosen.max(axis=-1), atol=1e-4)


@pytest.mark.parametrize("setting", ["none", "share_cross_self"])
def test_a_row_that_ends_in_its_source_is_nan_and_stays_so(setting):
    x, model = tokens(), build(setting)
    index = jnp.arange(20)
    at = Places(jnp.stack([jnp.where(index < n, index, -1) for n in (SOURCE, 20)]))
    first, state = model(x[:, :20], at, model.model.init_state(2, LENGTH))
    second, _ = model(x[:, 20:], state=state)
    assert jnp.isnan(first[0, SOURCE:]).all()
    assert jnp.isnan(second[0]).all()
    whole = model(x)[0][1]
    np.testing.assert_allclose(jnp.concatenate([first[1], second[1]]), whole, atol=1e-5)


def test_dropout_acts_with_a_key_alone_and_repeats():
    model = replace(config("none"), dropout=0.5).build(VOCAB, jnp.float32, seed=0)
    x, keys = tokens(), jax.random.split(jax.random.key(0))
    run = jax.jit(lambda key: model(x, dropout_key=key)[0][:, SOURCE:])
    assert jnp.array_equal(run(keys[0]), run(keys[0]))
    assert not jnp.allclose(run(keys[0]), run(keys[1]))
    assert not jnp.allclose(run(keys[0]), run(None))


def test_what_can_not_be_is_refused():
    model = build("none").model
    with pytest.raises(ValueError, match=r"12 tokens, but 12 are the source .* at least 13"):
        model(tokens()[:, :SOURCE], state=model.init_state(2, LENGTH))
    with pytest.raises(ValueError, match="can't hold packed documents"):
        model(tokens(), Places(segments=jnp.zeros((2, LENGTH), jnp.int32)))
    for name in ("share_encoder_decoder", "align_layers"):
        with pytest.raises(ValueError, match=f"{name} pairs encoder and decoder layers"):
            EncoderDecoder(encoder_layers=1, decoder_layers=2, **{name: True})
    with pytest.raises(ValueError, match=r"Full\(\) sees ahead"):
        EncoderDecoder(mixer=Attention(pattern=Full()))
    with pytest.raises(ValueError, match="source must be at least 1"):
        EncoderDecoder(source=0)
    with pytest.raises(ValueError, match="layers must be at least 1"):
        EncoderDecoder(decoder_layers=0)


def test_work_is_counted_where_the_tokens_pass():
    """By hand: per target token, of 30 tokens of which 12 are the source."""
    encoder, decoder, cross, pool = 2 * (4 * 16**2 + 2 * 16 * 32), 0, 2 * 2 * 16**2, 2 * 2 * 16**2
    decoder, head, target = encoder, 16 * VOCAB, LENGTH - SOURCE
    matrices = encoder * SOURCE + (decoder + cross + head) * target + pool * SOURCE
    pairs = 2 * SOURCE**2 + 2 * target * ((target + 1) / 2 + SOURCE)
    counted = config("none").multiplications(build("none").params, VOCAB, LENGTH)
    assert counted == pytest.approx((matrices + 2 * 16 * pairs) / target)

    matrices = encoder // 2 * SOURCE + (decoder + head) * target + pool * SOURCE
    pairs = SOURCE * (SOURCE + 1) / 2 + 2 * target * ((target + 1) / 2 + SOURCE)
    counted = config("all").multiplications(build("all").params, VOCAB, LENGTH)
    assert counted == pytest.approx((matrices + 2 * 16 * pairs) / target)


def test_work_is_counted_for_the_pairs_that_talk():
    """By hand: 30 tokens see 1, 2, 3, 3, ... keys in one layer and all earlier ones in another."""
    mixers = Attention(heads=4, pattern=Local(3)), Attention(heads=4, width=32)
    model = Transformer(layers=2, model=16, hidden=32, mixer=mixers, dropout=0.0)
    matrices = 4 * 16**2 + 4 * 16 * 32 + 2 * (2 * 16 * 32) + 16 * VOCAB
    pairs = 16 * (1 + 2 + 28 * 3) + 32 * 30 * 31 / 2
    counted = model.multiplications(Compiled(model).params, VOCAB, 30)
    assert counted == pytest.approx(matrices + 2 * pairs / 30)


def test_an_encoder_alone_is_a_transformer_that_sees_both_directions():
    mixer = Attention(heads=4, position=RoPE(), pattern=Full())
    model = Compiled(Transformer(layers=1, model=16, hidden=32, mixer=mixer, dropout=0.0))
    x = tokens(1)
    before, after = model(x)[0], model(changed(x, 15, 16))[0]
    assert jnp.any(before != after, axis=-1).all()
    with pytest.raises(ValueError, match="sees ahead, so it can't continue a state"):
        model(x, state=model.model.init_state(1, LENGTH))
