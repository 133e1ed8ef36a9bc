"""Relative pitch and time: the formula, and the way of coordinates through every kind of pass."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places, attention
from longctx.attention.layer import Attention
from longctx.attention.patterns import Causal
from longctx.attention.positions import NoPosition, RelativeEmbedding, RelativePitchTime, Together
from longctx.attention.positions.relative_coordinates import PitchTimeTerm
from longctx.transformer import Transformer

LENGTH, HEADS, DIM = 24, 4, 4
SCHEME = RelativePitchTime(max_time=4, max_pitch=5)


def draw(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def places(rows: int = 2, length: int = LENGTH) -> Places:
    """Return four tokens to a step, with wide intervals and some tokens without a pitch."""
    pitch = np.random.default_rng(1).integers(50, 66, (rows, length))
    pitch[:, ::5] = -1
    time = np.broadcast_to((np.arange(length) - 1) // 4, pitch.shape)
    return Places(coordinates=jnp.asarray(np.stack([time, pitch], axis=-1), jnp.int32))


def with_positions(at: Places) -> Places:
    assert at.coordinates is not None
    return at._replace(positions=jnp.arange(at.coordinates.shape[1])[None])


def term(tables: int = HEADS) -> PitchTimeTerm:
    return PitchTimeTerm(draw(2, tables, 4, DIM), draw(3, tables, 12, DIM))


@pytest.mark.parametrize("tables", [1, HEADS])
def test_scores_are_products_with_the_embeddings_of_distance_and_interval(tables):
    q, at = draw(0, 2, HEADS, LENGTH, DIM), places()
    got = np.asarray(term(tables).scores(q, at, at))
    table, ours, q = jax.tree.map(np.asarray, (term(tables), at.coordinates, q))
    expected = np.zeros_like(got)
    for b, h, i, j in np.ndindex(got.shape):
        (q_time, q_pitch), (k_time, k_pitch) = ours[b, i], ours[b, j]
        head, interval = h % tables, min(max(q_pitch - k_pitch, -5), 5)
        row = 11 if min(q_pitch, k_pitch) < 0 else interval + 5
        e_time = table.time[head, min(max(q_time - k_time, 0), 3)]
        expected[b, h, i, j] = q[b, h, i] @ (e_time + table.pitch[head, row])
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("shift", [(7, 0), (0, 12), (100, -7)], ids=str)
def test_transposing_or_delaying_the_piece_changes_nothing(shift):
    q, at = draw(0, 2, HEADS, LENGTH, DIM), places()
    assert at.coordinates is not None
    pitched = (at.coordinates[..., 1:] >= 0).astype(jnp.int32)
    moved = at.coordinates + jnp.concatenate([jnp.full_like(pitched, shift[0]),
                                              shift[1] * pitched], axis=-1)  # fmt: skip
    moved = Places(coordinates=moved)
    np.testing.assert_array_equal(term().scores(q, moved, moved), term().scores(q, at, at))


@pytest.mark.parametrize("positions", [False, True], ids=["consecutive", "positions"])
def test_blockwise_is_the_reference_with_the_gradients_of_both_tables(positions, monkeypatch):
    monkeypatch.setattr("kernels.attention.blockwise.BLOCK", 8)
    qkv = draw(0, 3, 2, HEADS, LENGTH, DIM)
    at = with_positions(places()) if positions else places()
    weights = draw(4, 2, HEADS, LENGTH, DIM)

    def loss(qkv, summand, name):
        q, k, v = qkv
        out = attention(q, k, v, pattern=Causal(), term=summand, q_at=at, implementation=name)
        return (weights * out).sum(), out

    def run(name):
        grad = jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
        return grad(qkv, term(), name)

    exact, got = run("reference"), run("blockwise")
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True):
        assert np.abs(b).max() > 1e-2
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_decode_is_the_reference():
    q, (k, v) = draw(0, 2, HEADS, 3, DIM), draw(1, 2, 2, 2, LENGTH, DIM)
    k_at = with_positions(places())
    q_at = jax.tree.map(lambda x: x[:, -3:], k_at)
    out, exact = (
        attention(q, k, v, pattern=Causal(), term=term(), q_at=q_at, k_at=k_at, implementation=n)
        for n in ("decode", "reference")
    )
    np.testing.assert_allclose(out, exact, atol=1e-5)


OURS = Attention(heads=HEADS, position=SCHEME)
EVERY_LAYER = Transformer(layers=2, model=16, hidden=16, mixer=OURS)
RELATIVE = RelativeEmbedding(max_distance=9)
FIRST_LAYER = replace(
    EVERY_LAYER,
    mixer=(
        replace(OURS, position=Together((RELATIVE, SCHEME))),
        replace(OURS, position=RELATIVE),
    ),
)
TOKENS = np.random.default_rng(0).integers(0, 48, (2, LENGTH))


@cache
def network(config: Transformer):
    graphdef, params = nnx.split(config.build(48, jnp.float32, seed=0))
    call = jax.jit(lambda *given: nnx.merge(graphdef, params)(*given))
    return call, nnx.merge(graphdef, params).init_state


def test_any_chunking_gives_the_whole():
    (call, init_state), at = network(FIRST_LAYER), places()
    whole, _ = call(TOKENS, at)
    state, parts = init_state(2, LENGTH), []
    for start, end in ((0, 11), (11, 12), (12, 23), (23, LENGTH)):
        chunk = jax.tree.map(lambda x, s=start, e=end: x[:, s:e], at)
        part, state = call(TOKENS[:, start:end], chunk, state)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-5)


def test_packed_documents_are_as_they_are_apart():
    (call, _), at = network(FIRST_LAYER), places()
    segments = (jnp.arange(LENGTH) >= 13).astype(jnp.int32)[None]
    packed, _ = call(TOKENS, at._replace(segments=segments))
    for part in (slice(0, 13), slice(13, LENGTH)):
        alone, _ = call(TOKENS[:, part], jax.tree.map(lambda x, part=part: x[:, part], at))
        np.testing.assert_allclose(packed[:, part], alone, atol=1e-5)


def test_coordinates_matter_and_only_to_layers_that_read_them():
    coordinates = np.asarray(places().coordinates)
    for axis in range(2):
        other = coordinates.copy()
        other[:, :, axis] *= 3
        call, _ = network(EVERY_LAYER)
        change = call(TOKENS, places())[0] - call(TOKENS, Places(coordinates=other))[0]
        assert np.abs(change).max() > 1e-2
    deaf = replace(EVERY_LAYER, mixer=replace(OURS, position=NoPosition()))
    call, _ = network(deaf)
    np.testing.assert_array_equal(call(TOKENS, places())[0], call(TOKENS)[0])
    assert (deaf.axes, FIRST_LAYER.axes) == (0, 2)
    reads, does_not = network(FIRST_LAYER)[1](1, 9).layers
    assert reads.at.coordinates.shape == (1, 9, 2)
    assert does_not.at.coordinates is None


def test_missing_coordinates_are_refused():
    q = draw(0, 1, HEADS, LENGTH, DIM)
    with pytest.raises(ValueError, match="2 coordinates of each token, its time and pitch, but no"):
        attention(q, q, q, pattern=Causal(), term=term())
    call, init_state = network(EVERY_LAYER)
    for state in (None, init_state(2, LENGTH)):
        with pytest.raises(ValueError, match=r"reads 2 coordinates .* 0 came"):
            call(TOKENS, Places(), state)
    with pytest.raises(ValueError, match=r"reads 2 coordinates .* 3 came"):
        call(TOKENS, Places(coordinates=np.zeros((2, LENGTH, 3), np.int32)))


def test_bad_tables_are_refused():
    with pytest.raises(ValueError, match="max_time of at least 1"):
        RelativePitchTime(max_time=0)
    with pytest.raises(ValueError, match="max_pitch of at least 0, not -1"):
        RelativePitchTime(max_pitch=-1)


@pytest.mark.parametrize("scheme", RelativePitchTime.small(), ids=str)
def test_tables_are_per_head_or_shared(scheme):
    place = scheme.in_attention(HEADS, DIM, nnx.Rngs(0))
    shapes = {leaf.shape for leaf in jax.tree.leaves(nnx.state(place))}
    tables = HEADS if scheme.per_head else 1
    assert shapes == {(tables, 6, DIM), (tables, 12, DIM)}
