"""The search for nearest keys: every implementation against the textbook."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kernels.attention import Places
from kernels.topk import IMPLEMENTATIONS, nearest
from longctx.attention.patterns import Beyond, Causal, Full, Local

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr("kernels.topk.blockwise.ROWS", 8)
    monkeypatch.setattr("kernels.topk.blockwise.COLUMNS", 16)
    monkeypatch.setattr("kernels.topk.pallas_gpu.ROWS", 8)
    monkeypatch.setattr("kernels.topk.pallas_gpu.COLUMNS", 16)
    monkeypatch.setattr("kernels.topk.pallas_gpu.PROGRAMS", 16)


def arrays(q_len, k_len, heads=4, kv_heads=4, dim=8, seed=0, dtype=jnp.float32):
    q, k = jax.random.split(jax.random.key(seed))
    return (
        jax.random.normal(q, (2, heads, q_len, dim), dtype),
        jax.random.normal(k, (2, kv_heads, k_len, dim), dtype),
    )


def both(q, k, **call):
    want = nearest(q, k, implementation="reference", **call)
    for name in ("blockwise", "pallas_gpu"):
        found = nearest(q, k, implementation=name, **call)
        np.testing.assert_array_equal(found[1], want[1])
        np.testing.assert_allclose(found[0], want[0], rtol=1e-5, atol=1e-5)
    return want


@pytest.mark.parametrize(
    ("q_len", "k_len", "kv_heads", "count"),
    [
        (1, 1, 4, 1), (1, 1, 1, 5), (1, 40, 2, 5), (1, 40, 4, 60), (8, 16, 1, 16),
        (8, 16, 4, 17), (21, 50, 4, 1), (21, 50, 2, 16), (50, 50, 1, 5), (50, 50, 2, 60),
    ],
)  # fmt: skip
def test_tiles_find_what_the_textbook_finds(q_len, k_len, kv_heads, count):
    q, k = arrays(q_len, k_len, kv_heads=kv_heads)
    scores, index = both(q, k, count=count, pattern=Causal())
    assert scores.shape == index.shape == (2, 4, q_len, count)
    for t in range(q_len):
        there = min(count, k_len - q_len + t + 1)
        row = np.asarray(index[0, 0, t])
        assert len(set(row[:there].tolist()) - {-1}) == there
        assert (row[there:] == -1).all()
        assert np.isneginf(scores[0, 0, t, there:]).all()


def test_of_equal_keys_the_first_comes_first():
    q, k = arrays(5, 50)
    _, index = both(q, jnp.zeros_like(k), count=20, pattern=Full(), q_at=at(5), k_at=at(50))
    np.testing.assert_array_equal(index, np.broadcast_to(np.arange(20), index.shape))
    rough = jnp.round(k[..., :1]) * jnp.ones_like(k)  # few different keys
    both(jnp.round(q), rough, count=9, pattern=Local(30))


def at(length):
    return Places(jnp.arange(length)[None])


def test_empty_slots_padding_and_other_documents_are_never_found():
    q, k = arrays(21, 50)
    rng = np.random.default_rng(0)
    positions, segments = rng.integers(-1, 60, (2, 50)), rng.integers(0, 3, (2, 50))
    k_at = Places(jnp.asarray(positions), jnp.asarray(segments))
    q_at = Places(jnp.arange(-1, 20)[None] + 20, jnp.asarray(rng.integers(0, 3, (1, 21))))
    q_at = q_at._replace(positions=q_at.positions.at[0, 3].set(-1))
    _, index = both(q, k, count=7, pattern=Local(25), q_at=q_at, k_at=k_at)
    assert (index[:, :, 3] == -1).all()
    assert (index == -1).any()
    for row, _, i, _ in np.argwhere(index >= 0):
        for key in set(np.asarray(index[row, :, i]).ravel().tolist()) - {-1}:
            assert segments[row, key] == q_at.segments[0, i]
            assert 0 <= positions[row, key] <= q_at.positions[0, i]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_keys_of_any_type_with_a_factor(dtype):
    q, k = arrays(21, 50, kv_heads=2)
    scale = jax.random.uniform(jax.random.key(3), k.shape[:3])
    both(q, (20 * k).astype(dtype), count=7, pattern=Causal(), k_scale=scale)


def test_no_gradient_flows():
    q, k = arrays(8, 16)
    grads = jax.grad(lambda q, k: nearest(q, k, count=3, pattern=Causal())[0].sum(), (0, 1))(q, k)
    assert not any(np.any(grad) for grad in grads)


@pytest.mark.parametrize("recall", [0.5, 0.95])
def test_the_approximate_search_keeps_its_recall(recall, monkeypatch):
    monkeypatch.setattr("kernels.topk.blockwise.COLUMNS", 2048)
    q, k = arrays(64, 5000, heads=2, kv_heads=2, dim=16)
    call = {"count": 32, "pattern": Causal()}
    _, want = nearest(q, k, implementation="reference", **call)
    scores, found = nearest(q, k, recall=recall, **call)
    got = np.mean([len({*a} & {*b}) / 32 for a, b in zip(rows(want), rows(found), strict=True)])
    assert got >= recall - 0.02
    picked = jnp.take_along_axis(jnp.einsum("bhqd,bhkd->bhqk", q, k), found, axis=-1)
    np.testing.assert_allclose(scores, picked, atol=1e-4)


def rows(index):
    return np.asarray(index).reshape(-1, index.shape[-1]).tolist()


def test_the_approximate_search_finds_no_hidden_key():
    q, k = arrays(21, 50)
    scores, index = nearest(q, k, count=20, pattern=Local(4), recall=0.9)
    own = np.arange(29, 50)[None, None, :, None]
    assert ((index == -1) | ((index <= own) & (index > own - 4))).all()
    np.testing.assert_array_equal(index == -1, np.isneginf(scores))
    assert ((index >= 0).sum(axis=-1) >= 1).all()


def test_an_exact_search_is_not_served_approximately():
    q, k = arrays(8, 16)
    with pytest.raises(NotImplementedError, match="recall below 1"):
        nearest(q, k, count=3, pattern=Causal(), implementation="approximate")


@pytest.mark.parametrize(
    ("change", "dtype", "complaint"),
    [
        ({"count": 129}, jnp.float32, "a count of up to 128"),
        ({}, jnp.float16, "not float16"),
    ],
)
def test_what_the_gpu_kernel_does_not_serve_is_refused(change, dtype, complaint):
    q, k = arrays(8, 16)
    call = {"count": 3, "pattern": Causal(), "implementation": "pallas_gpu"} | change
    with pytest.raises(NotImplementedError, match=complaint):
        nearest(q, k.astype(dtype), **call)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_where_nothing_is_allowed_nothing_is_found(implementation):
    q, k = arrays(8, 16)
    scores, index = nearest(
        q, k, count=3, pattern=Beyond(Local(1000)), recall=0.9, implementation=implementation
    )
    assert (index == -1).all()
    assert np.isneginf(scores).all()


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"count": 0}, "count 0 must be positive"),
        ({"recall": 0.0}, "recall 0.0"),
        ({"recall": 1.5}, "recall 1.5"),
        ({"implementation": "magic"}, "known are reference"),
        ({"k_at": Places(jnp.zeros((1, 16), jnp.int32))}, "give positions for queries and keys"),
        ({"q_at": at(9), "k_at": at(16)}, "of 8 queries must be"),
        ({"k_scale": jnp.ones((2, 4, 3))}, "one factor for each key"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(change, complaint):
    q, k = arrays(8, 16)
    with pytest.raises(ValueError, match=complaint):
        nearest(q, k, **({"count": 3, "pattern": Causal()} | change))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("q_shape", "k_shape", "complaint"),
    [
        ((1, 4, 8, 8), (1, 3, 16, 8), "can't share 3 key heads"),
        ((1, 4, 8, 8), (1, 4, 16, 9), "one batch and dim"),
        ((1, 4, 8, 8), (2, 4, 16, 8), "one batch and dim"),
        ((1, 4, 17, 8), (1, 4, 16, 8), "need explicit positions"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(q_shape, k_shape, complaint):
    with pytest.raises(ValueError, match=complaint):
        nearest(jnp.ones(q_shape), jnp.ones(k_shape), count=3, pattern=Causal())
