"""What every mixer, position scheme and pattern owes: a new file joins without a line here.

The properties of a layer are proven with the textbook implementation; `test_every_implementation`
ties the others to it, gradients of all learned tables included. `--kit-report FILE` writes the
worst error of every variant.
"""

import sys
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import Pattern, Places
from longctx.attention.layer import Attention, AttentionLayer
from longctx.attention.patterns import Causal
from longctx.attention.positions import Position, RelativeEmbedding
from longctx.mixer import MixerConfig
from longctx.mixers import Memorizing
from longctx.transformer import Transformer
from longctx.variants import members, spell

LENGTH, MODEL, VOCAB = 29, 16, 13
"""Chunks are 1, 8 and 20 tokens long, so that few shapes are compiled."""
TABLE = RelativeEmbedding(max_distance=9)


def variants() -> dict[str, MixerConfig]:
    """Return every variant at the scale of tests, by its spelling."""
    found: list[MixerConfig] = []
    for kind in members(Position).values():
        found += [Attention(heads=4, position=scheme) for scheme in kind.small()]
    for kind in members(Pattern).values():
        found += [Attention(heads=4, position=TABLE, pattern=pattern) for pattern in kind.small()]
    for kind in members(MixerConfig).values():
        found += kind.small()
    return {spell(mixer): mixer for mixer in found}


VARIANTS = variants()
pytestmark = pytest.mark.usefixtures("quick_compilation")
every_variant = pytest.mark.parametrize("name", VARIANTS, ids=str)


def prefix(name: str) -> int | None:
    """Return how many first tokens see each other; None for variants that see ahead anywhere."""
    return VARIANTS[name].prefix


CACHED = [name for name in VARIANTS if prefix(name) is not None]


@cache
def build(name: str, implementation: str | None = "reference") -> Any:
    """Return a one-layer model of a variant; attention in it is the textbook's."""
    mixer = VARIANTS[name]
    if isinstance(mixer, Attention):
        mixer = replace(mixer, implementation=implementation)
    model = Transformer(layers=1, model=MODEL, hidden=16, mixer=mixer, dropout=0.0)
    return model.build(VOCAB, jnp.float32, seed=0)


def tokens(rows: int = 2, seed: int = 0) -> jax.Array:
    return jax.random.randint(jax.random.key(seed), (rows, LENGTH), 0, VOCAB)


def places(x: jax.Array, positions: jax.Array | None = None, **parts: Any) -> Places:
    """Return where tokens stand, with an onset and a pitch for those who ask."""
    at = jnp.arange(x.shape[1])[None] if positions is None else positions
    onset = jnp.broadcast_to(at // 3, x.shape)
    return Places(positions, coordinates=jnp.stack([onset, x], axis=2), **parts)


def run(model: Any, x: jax.Array, start: int = 0, stop: int = LENGTH, state: Any = None):
    """Return (logits, state) of some tokens, which stand where they stand in the whole."""
    at = places(x, jnp.arange(LENGTH)[None])
    part = jax.tree.map(lambda leaf: leaf[:, start:stop], at)
    return model(
        x[:, start:stop], part if state is not None else part._replace(positions=None), state
    )


def close(record, ours, theirs, atol: float) -> None:
    """Record the largest difference and check it."""
    error = float(np.abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)).max())
    record(error)
    assert error <= atol, error


@every_variant
def test_changing_the_future_changes_nothing(name, record):
    """Exactly nothing, of outputs and of the gradients of outputs."""
    x, model = tokens(), build(name)
    changed = x.at[:, 20:].set((x[:, 20:] + 1) % VOCAB)
    before, after = run(model, x)[0], run(model, changed)[0]
    assert not jnp.array_equal(before[:, 20:], after[:, 20:])
    if prefix(name) is None:
        assert not jnp.array_equal(before[:, :20], after[:, :20])
    else:
        close(record, before[:, :20], after[:, :20], 0.0)


@pytest.mark.parametrize("name", CACHED, ids=str)
@pytest.mark.parametrize("cuts", [(1, 9), (20, 21)], ids=str)
def test_any_chunking_gives_the_whole(name, cuts, record):
    x, model = tokens(), build(name)
    whole, nothing = run(model, x)
    assert nothing is None
    cuts = [cut for cut in cuts if cut >= (prefix(name) or 0)]
    state, parts = model.init_state(2, LENGTH), []
    for start, stop in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        part, state = run(model, x, start, stop, state)
        parts.append(part)
    close(record, jnp.concatenate(parts, axis=1), whole, 1e-5)
    np.testing.assert_array_equal(state.length, LENGTH)


@settings(max_examples=8, derandomize=True)
@given(cuts=st.lists(st.integers(1, LENGTH - 1), unique=True, max_size=6), rows=st.integers(1, 3))
@pytest.mark.parametrize("name", CACHED, ids=str)
@pytest.mark.slow
def test_any_drawn_chunking_gives_the_whole(name, cuts, rows):
    x, model = tokens(rows), build(name)
    cuts = sorted(cut for cut in cuts if cut >= (prefix(name) or 0))
    state, parts = model.init_state(rows, LENGTH), []
    for start, stop in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        part, state = run(model, x, start, stop, state)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), run(model, x)[0], atol=1e-5)


@pytest.mark.parametrize("name", CACHED, ids=str)
def test_rows_of_different_lengths_continue_alone(name, record):
    """Right-padded prompts of 9 and 20 tokens, then 8 more each, against the whole pass."""
    x, model, lengths = tokens(), build(name), (9, 20)
    at = jnp.stack([jnp.where(jnp.arange(20) < n, jnp.arange(20), -1) for n in lengths])
    first, state = model(x[:, :20], places(x[:, :20], at), model.init_state(2, LENGTH))
    more = jnp.stack([x[row, n : n + 8] for row, n in enumerate(lengths)])
    further = jnp.asarray(lengths)[:, None] + jnp.arange(8)
    second, _ = model(more, places(more, further), state)
    assert np.isfinite(first).all()
    whole, _ = run(model, x)
    for row, n in enumerate(lengths):
        close(record, first[row, :n], whole[row, :n], 1e-5)
        close(record, second[row], whole[row, n : n + 8], 1e-5)


def translation_invariant(name: str) -> bool:
    mixer = VARIANTS[name]
    if isinstance(mixer, Memorizing):
        mixer = mixer.local
    if not isinstance(mixer, Attention):
        return True
    layer = mixer.build(MODEL, jnp.float32, nnx.Rngs(0))
    assert isinstance(layer, AttentionLayer)
    term = layer.place.term()
    parts = mixer.position.parts
    absolute = any(part.in_embedding(MODEL, nnx.Rngs(0)) is not None for part in parts)
    return mixer.pattern.relative and not absolute and (term is None or term.relative)


@pytest.mark.parametrize(
    "name", [name for name in VARIANTS if translation_invariant(name)], ids=str
)
def test_shifting_all_positions_changes_nothing(name, record):
    x, model = tokens(), build(name)
    plain, _ = run(model, x)
    at = places(x)._replace(positions=1000 + jnp.arange(LENGTH)[None])
    close(record, model(x, at)[0], plain, 1e-4)


@every_variant
def test_padding_is_finite_and_gets_no_gradient(name):
    """A row of padding alone has no key to see; a row with padding behind is as without."""
    x, model = tokens(), build(name)
    mixer = model.blocks[0].mixer
    length = jnp.array([20, 0])[:, None]
    at = places(x, jnp.where(jnp.arange(LENGTH) < length, jnp.arange(LENGTH), -1))
    h = jax.random.normal(jax.random.key(1), (2, LENGTH, MODEL))
    there = (jnp.arange(LENGTH) < length)[:, :, None]

    def loss(h):
        y, _ = mixer(h, at)
        return (jnp.where(there, y, 0.0) ** 2).sum(), y

    (_, y), grad = jax.value_and_grad(loss, has_aux=True)(h)
    assert np.isfinite(y).all()
    assert np.isfinite(grad).all()
    assert not np.any(np.where(there, 0.0, grad))
    assert np.any(grad[0])


@every_variant
def test_packed_documents_are_as_run_apart(name, record):
    x, model = tokens(2, seed=3), build(name)
    lengths = ((8, 20), (20, 8))
    segments = np.full((2, LENGTH), -1)
    local = np.zeros((2, LENGTH), np.int32)
    for row, parts in enumerate(lengths):
        start = 0
        for number, length in enumerate(parts):
            segments[row, start : start + length] = number
            local[row, start : start + length] = np.arange(length)
            start += length
    onset_pitch = jnp.stack([jnp.asarray(local) // 3, x], axis=2)
    packed, _ = model(x, Places(segments=jnp.asarray(segments), coordinates=onset_pitch))
    assert np.isfinite(packed).all()
    for row, parts in enumerate(lengths):
        start = 0
        for length in parts:
            document = x[:, start : start + length]
            alone, _ = model(document, places(document))
            close(record, packed[row, start : start + length], alone[row], 1e-5)
            start += length


@every_variant
def test_batch_rows_do_not_see_each_other(name):
    x = tokens()
    changed = x.at[1].set((x[1] + 1) % VOCAB)
    before, after = run(build(name), x)[0], run(build(name), changed)[0]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


@every_variant
def test_every_parameter_gets_a_gradient(name):
    x, (graphdef, params, others) = tokens(), nnx.split(build(name), nnx.Param, ...)

    def loss(params):
        return (run(nnx.merge(graphdef, params, others), x)[0] ** 2).sum()

    for path, grad in jax.tree_util.tree_leaves_with_path(jax.grad(loss)(params)):
        assert np.isfinite(grad).all(), path
        assert np.any(grad), path


@pytest.mark.parametrize("name", [name for name in CACHED if prefix(name)], ids=str)
def test_a_chunk_that_ends_inside_a_prefix_is_nan_and_not_quietly_wrong(name):
    x, model = tokens(), build(name)
    cut = (prefix(name) or 0) - 1
    logits, _ = run(model, x, 0, cut, model.init_state(2, LENGTH))
    assert np.isnan(logits).all()


@pytest.mark.parametrize("name", CACHED, ids=str)
def test_a_state_is_saved_and_restored(name, tmp_path):
    x, model = tokens(), build(name)
    _, state = run(model, x, 0, 20, model.init_state(2, LENGTH))
    leaves, structure = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "state.npz", allow_pickle=False) as stored:
        restored = structure.unflatten(map(jnp.asarray, stored.values()))
    ours, theirs = (run(model, x, 20, LENGTH, s)[0] for s in (restored, state))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", CACHED, ids=str)
def test_a_fresh_state_is_a_fresh_start_and_a_grown_one_goes_on(name, record):
    x, model = tokens(), build(name)
    _, state = run(model, x, 0, 20, model.init_state(2, 20))
    rest, _ = run(model, x, 20, LENGTH, model.grow_state(state, LENGTH))
    close(record, rest, run(model, x)[0][:, 20:], 1e-5)


def calls() -> list[Any]:
    """Return (variant, implementation, positions given) for all that a kernel can tell apart."""
    found, known = [], set()
    for name, mixer in VARIANTS.items():
        if not isinstance(mixer, Attention):
            continue
        layer = mixer.build(MODEL, jnp.float32, nnx.Rngs(0))
        assert isinstance(layer, AttentionLayer)
        term = layer.place.term()
        what = (jax.tree.structure(term), mixer.pattern, mixer.kv_heads)
        if what in known:
            continue
        known.add(what)
        found += [(name, "blockwise", False), (name, "row_blocks", False)]
        for kernel in ("pallas_tpu", "pallas_gpu"):  # interpreted, which takes long to compile
            found.append(pytest.param(name, kernel, False, marks=pytest.mark.slow))
        if mixer.pattern.prefix is not None:
            found.append((name, "decode", True))
        if mixer.pattern == Causal():  # a given position changes nothing else for a pattern
            found.append((name, "blockwise", True))
    return found


def by_distance_alone(name: str) -> bool:
    """Return whether the score term of a variant is one of distances, and adds to scores alone."""
    layer: Any = VARIANTS[name].build(MODEL, jnp.float32, nnx.Rngs(0))
    term = layer.place.term()
    return term is None or not (term.by_distance(np.arange(1)) is None or term.adds_values)


def layer_call(layer: AttentionLayer, x: jax.Array, h: jax.Array, explicit: bool, q_len: int):
    """Return what the last `q_len` queries of a layer take from all keys, as decoding would."""
    at = places(x, jnp.arange(LENGTH)[None] if explicit else None)
    if q_len == LENGTH:
        return layer(h, at)[0]
    cut = partial(jax.tree.map, lambda leaf: leaf[:, : LENGTH - q_len])
    rest = partial(jax.tree.map, lambda leaf: leaf[:, LENGTH - q_len :])
    reference = AttentionLayer.__call__
    _, state = reference(_textbook(layer), cut(h), cut(at), layer.init_state(h.shape[0], LENGTH))
    return layer(rest(h), rest(at), state)[0]


def _textbook(layer: AttentionLayer) -> AttentionLayer:
    graphdef, params = nnx.split(layer)
    copy = nnx.merge(graphdef, params)
    copy.config = replace(layer.config, implementation="reference")
    return copy


@pytest.mark.parametrize(("name", "implementation", "explicit"), calls())
def test_every_implementation(name, implementation, explicit, record, monkeypatch):
    """Outputs and all gradients equal the textbook's, or the call is refused with a reason."""
    monkeypatch.setattr(sys.modules["kernels.attention.blockwise"], "BLOCK", 16)
    x, h = tokens(), jax.random.normal(jax.random.key(2), (2, LENGTH, MODEL))
    q_len = 1 if implementation == "decode" else LENGTH

    def results(chosen: str, dtype=jnp.float32):
        config = replace(VARIANTS[name], implementation=chosen)
        graphdef, params = nnx.split(config.build(MODEL, dtype, nnx.Rngs(0)))

        def loss(params, h):
            y = layer_call(nnx.merge(graphdef, params), x, h, explicit, q_len)
            return (y * jnp.cos(jnp.arange(MODEL))).sum(), y

        if implementation == "decode":  # its gradients are tested with the kernels
            return loss(params, h)[1], []
        (_, y), grads = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(params, h)
        return y, jax.tree_util.tree_leaves_with_path(grads)

    consecutive = implementation == "row_blocks" or implementation.startswith("pallas")
    if consecutive and not by_distance_alone(name):
        with pytest.raises(NotImplementedError, match="terms of the distance that add to scores"):
            results(implementation)
        return
    y, grads = results(implementation)
    want, want_grads = results("reference")
    close(record, y, want, 2e-5)
    for (path, ours), (_, theirs) in zip(grads, want_grads[: len(grads)], strict=True):
        scale = max(float(np.abs(theirs).max()), 1e-3)
        assert np.abs(ours - theirs).max() <= 1e-3 * scale, path
    if implementation == "decode":
        rough, _ = results(implementation, jnp.bfloat16)
        assert np.abs(rough - want).max() <= 2e-2 * max(1.0, float(np.abs(want).max()))


def test_the_kit_knows_all_families():
    kinds = {type(mixer) for mixer in VARIANTS.values()}
    assert kinds == set(members(MixerConfig).values())
    schemes = {type(m.position) for m in VARIANTS.values() if isinstance(m, Attention)}
    patterns = {type(m.pattern) for m in VARIANTS.values() if isinstance(m, Attention)}
    assert schemes >= set(members(Position).values())
    assert patterns >= set(members(Pattern).values())
