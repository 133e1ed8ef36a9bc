"""Memorizing attention against its equation; the store; larger memories and loaded corpora."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places
from longctx.attention.layer import Attention
from longctx.attention.memory import Entries, Store
from longctx.attention.patterns import Beyond, Local, Recurrent
from longctx.attention.positions import NoPosition, RelativeEmbedding
from longctx.layers import unit
from longctx.memory import load_corpus, with_memory
from longctx.mixers.memorizing import Memorizing
from longctx.transformer import Transformer

MODEL, LENGTH, VOCAB = 16, 37, 11
GATED = Memorizing(heads=4, kv_heads=2, position=NoPosition(), window=4, memory=16, top_k=3)
JOINT = replace(GATED, joint=True)
SEGMENTED = replace(GATED, segment=6)
pytestmark = pytest.mark.usefixtures("quick_compilation")
both_ways = pytest.mark.parametrize("config", [GATED, JOINT], ids=["gated", "joint"])


def split(config, dtype=jnp.float32):
    """Return a layer's structure and parameters, none of which has a special value."""
    graphdef, params = nnx.split(config.build(MODEL, dtype, nnx.Rngs(0)))
    key = jax.random.key(1)
    return graphdef, jax.tree.map(lambda p: p + 0.3 * jax.random.normal(key, p.shape), params)


def inputs(seed: int = 0, length: int = LENGTH) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (2, length, MODEL))


def call(config, x, at=None, state=None):
    run, own = compiled(config)
    return run(own, x, at or Places(), state)


@cache
def compiled(config):
    graphdef, params = split(config)
    return jax.jit(lambda params, *args: nnx.merge(graphdef, params)(*args)), params


def layer(config):
    return nnx.merge(*split(config))


def textbook(config, params, x):
    """The equation, one query at a time in the head of the paper: all pairs, no tiles, no state."""
    p = nnx.to_pure_dict(params)
    dim = MODEL // config.heads
    q, k, v = (
        (x @ p[name]["kernel"]).reshape(*x.shape[:2], -1, dim).swapaxes(1, 2) for name in "qkv"
    )
    group = config.heads // k.shape[1]
    k, v = jnp.repeat(k, group, axis=1), jnp.repeat(v, group, axis=1)
    back = jnp.arange(x.shape[1])[:, None] - jnp.arange(x.shape[1])
    before = config.window - 1  # keys that a query surely sees before its own, and its segment's
    if config.segment is not None:
        before = config.window + jnp.arange(x.shape[1])[:, None] % config.segment
    reach = config.window + (config.segment or 0) + config.memory
    near = (back >= 0) & (back <= before)
    far = (back > before) & (back < reach)
    local = jnp.where(near, q @ k.swapaxes(2, 3) / dim**0.5, -jnp.inf)

    unit = [a / jnp.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k)]
    cosines = unit[0] @ jax.lax.stop_gradient(unit[1]).swapaxes(2, 3)
    cosines = jnp.where(far, cosines, -jnp.inf)
    least = jax.lax.stop_gradient(-jnp.sort(-cosines, axis=-1)[..., config.top_k - 1, None])
    chosen = far & (cosines >= least)
    scale = jnp.exp(p["log_scale"])[:, None, None]
    scores = jnp.where(chosen, scale * jnp.where(chosen, cosines, 0.0), -1e30)
    stored = jax.lax.stop_gradient(v)
    if config.joint:
        weights = jax.nn.softmax(jnp.concatenate([local, scores], axis=-1), axis=-1)
        near_weights, far_weights = jnp.split(weights, 2, axis=-1)
        y = near_weights @ v + jnp.where(chosen, far_weights, 0.0) @ stored
    else:
        gate = jax.nn.sigmoid(p["gate"])[:, None, None] * far.any(axis=1)[:, None]
        memory = jnp.where(chosen, jax.nn.softmax(scores, axis=-1), 0.0) @ stored
        y = gate * memory + (1 - gate) * (jax.nn.softmax(local, axis=-1) @ v)
    return y.swapaxes(1, 2).reshape(*x.shape[:2], -1) @ p["out"]["kernel"]


@pytest.mark.parametrize("config", [GATED, JOINT, SEGMENTED], ids=["gated", "joint", "xl"])
def test_outputs_and_gradients_are_those_of_the_equation(config):
    (graphdef, params), x = split(config), inputs()
    weights = jnp.cos(jnp.arange(MODEL))

    def ours(params, x):
        y, _ = nnx.merge(graphdef, params)(x)
        return (y * weights).sum(), y

    def theirs(params, x):
        y = textbook(config, params, x)
        return (y * weights).sum(), y

    (_, got), grads = jax.jit(jax.value_and_grad(ours, (0, 1), has_aux=True))(params, x)
    (_, want), wanted = jax.jit(jax.value_and_grad(theirs, (0, 1), has_aux=True))(params, x)
    np.testing.assert_allclose(got, want, atol=1e-5)
    for (path, grad), slope in zip(
        jax.tree_util.tree_leaves_with_path(grads), jax.tree.leaves(wanted), strict=True
    ):
        assert np.any(slope), path
        assert np.abs(grad - slope).max() <= 1e-3 * np.abs(slope).max(), path


@both_ways
def test_what_is_retrieved_gets_no_gradient(config):
    """The last query's output does not pull on tokens that only the memory holds."""
    graphdef, params = split(config)

    def last(x):
        return nnx.merge(graphdef, params)(x)[0][:, -1].sum()

    grad = jax.jit(jax.grad(last))(inputs())
    assert not np.any(grad[:, : LENGTH - config.window])
    assert np.all(np.any(grad[:, LENGTH - config.window :], axis=-1))


@both_ways
def test_blocks_of_queries_change_nothing(config, monkeypatch):
    y, _ = call(config, inputs())
    monkeypatch.setattr("longctx.attention.memory.retrieval.ROWS", 8)
    monkeypatch.setattr("kernels.topk.blockwise.ROWS", 8)
    monkeypatch.setattr("kernels.topk.blockwise.COLUMNS", 16)
    np.testing.assert_allclose(layer(config)(inputs())[0], y, atol=1e-5)


@both_ways
def test_an_empty_memory_is_local_attention_to_the_last_bit(config):
    x = inputs(length=config.window)
    local = Attention(4, 2, position=NoPosition(), pattern=Local(4))
    graphdef, _ = split(local)
    _, params = split(config)
    own = nnx.State({name: params[name] for name in ("q", "k", "v", "out")})
    want, _ = jax.jit(lambda x: nnx.merge(graphdef, own)(x))(x)
    np.testing.assert_array_equal(call(config, x)[0], want)
    state = layer(config).init_state(2, 0)
    got, after = call(config, x, state=state)
    np.testing.assert_allclose(got, want, atol=1e-6)
    np.testing.assert_array_equal(after.answered, 0.0)
    np.testing.assert_array_equal(after.asked, config.window)


@pytest.mark.parametrize("storage", [pytest.param("bfloat16", marks=pytest.mark.slow), "int8"])
@pytest.mark.parametrize("cuts", [(5, 6, 7, 30)], ids=str)
def test_any_chunking_gives_the_whole_in_any_storage(storage, cuts):
    config, x = replace(GATED, storage=storage, position=RelativeEmbedding(9)), inputs()
    state, parts = layer(config).init_state(2, LENGTH), []
    for start, stop in zip((0, *cuts), (*cuts, LENGTH), strict=True):
        part = Places(jnp.arange(start, stop)[None])
        y, state = call(config, x[:, start:stop], part, state)
        parts.append(y)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), call(config, x)[0], atol=1e-5)


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 12])
@pytest.mark.parametrize("config", [JOINT, pytest.param(SEGMENTED, marks=pytest.mark.slow)])
def test_documents_that_cross_batches_of_training_are_as_whole(config, size):
    model = Transformer(layers=2, model=MODEL, hidden=16, mixer=config, dropout=0.0)
    graphdef, params = nnx.split(model.build(VOCAB, jnp.float32, seed=0))
    tokens = jax.random.randint(jax.random.key(0), (2, 48), 0, VOCAB)
    number = np.repeat([[7, 8, 9], [3, 4, 5]], [21, 20, 7], axis=1)
    number[1] = np.repeat([3, 4, 5], [2, 15, 31])

    @jax.jit
    def run(tokens, segments, state):
        return nnx.merge(graphdef, params)(tokens, Places(segments=segments), state)

    state, parts = nnx.merge(graphdef, params).training_state(2), []
    for start in range(0, 48, size):
        part = slice(start, start + size)
        logits, state = run(tokens[:, part], jnp.asarray(number[:, part]), state)
        parts.append(logits)
    streamed = jnp.concatenate(parts, axis=1)
    at_once, _ = run(tokens, jnp.asarray(number), None)
    np.testing.assert_allclose(streamed, at_once, atol=2e-5)
    for row in range(2):
        for document in np.unique(number[row]):
            own = np.flatnonzero(number[row] == document)
            alone, _ = run(tokens[row : row + 1, own], None, None)
            np.testing.assert_allclose(streamed[row, own], alone[0], atol=2e-5)


def test_a_memory_tells_its_gate_and_what_was_found():
    own = layer(GATED)
    _, state = call(GATED, inputs(), Places(segments=jnp.zeros((2, LENGTH), int)), packed(own))
    told = own.told(state)
    np.testing.assert_allclose(told.metrics["memory/found"], 1 - GATED.window / LENGTH)
    np.testing.assert_allclose(told.metrics["memory/gate"], jax.nn.sigmoid(own.gate[...]).mean())
    assert float(told.loss) == 0.0
    fresh = GATED.build(MODEL, jnp.float32, nnx.Rngs(0))
    assert float(fresh.told(packed(fresh)).metrics["memory/gate"]) == 0.5
    assert float(fresh.told(packed(fresh)).metrics["memory/found"]) == 0.0
    assert set(layer(JOINT).told(packed(layer(JOINT))).metrics) == {"memory/found"}


def packed(own):
    return own.training_state(2)


def test_an_approximate_memory_is_near_the_exact_one():
    config = replace(GATED, memory=30)
    exact, rough = (call(c, inputs())[0] for c in (config, replace(config, approximate=0.99)))
    assert np.isfinite(rough).all()
    assert np.abs(exact - rough).mean() <= 0.05 * np.abs(exact).mean()


def test_bfloat16_stays_near_float32():
    graphdef, _ = split(GATED, jnp.bfloat16)
    _, params = split(GATED)
    x = inputs().astype(jnp.bfloat16)
    rough, state = jax.jit(lambda x, s: nnx.merge(graphdef, params)(x, state=s))(
        x, nnx.merge(graphdef, params).init_state(2, 0)
    )
    exact, _ = call(GATED, x.astype(jnp.float32))
    assert rough.dtype == jnp.bfloat16
    assert state.local.k.dtype == jnp.bfloat16
    # Rounding may swap the last of the retrieved keys for the next, so the mean is judged.
    assert np.abs(np.asarray(rough, np.float32) - exact).mean() <= 2e-2 * np.abs(exact).max()


def entries(length, seed=0):
    k, v = (jax.random.normal(jax.random.key(seed + i), (2, 2, length, 8)) for i in range(2))
    return unit(k), v


def at(*rows):
    return Places(jnp.asarray(rows, jnp.int32))


def write(store: Store, k, v, at) -> Store:
    return store.extend(Entries.of(k, v, at, store.storage))


def test_a_full_store_overwrites_its_oldest_entry():
    k, v = entries(7)
    store = Store.empty(2, 2, 5, 8, "float32")
    for t in range(7):
        store = write(store, k[:, :, t : t + 1], v[:, :, t : t + 1], at([t], [t + 50]))
    np.testing.assert_array_equal(
        store.entries.at.positions, [[5, 6, 2, 3, 4], [55, 56, 52, 53, 54]]
    )
    order = jnp.array([5, 6, 2, 3, 4])
    np.testing.assert_array_equal(store.entries.k, k[:, :, order])
    np.testing.assert_array_equal(store.entries.v, v[:, :, order])
    np.testing.assert_array_equal(store.next, [2, 2])
    at_once = write(Store.empty(2, 2, 5, 8, "float32"), k, v, at(range(7), range(50, 57)))
    jax.tree.map(np.testing.assert_array_equal, at_once, store)


def test_padding_leaves_no_trace_and_rows_have_pointers_of_their_own():
    k, v = entries(4)
    store = write(Store.empty(2, 2, 3, 8, "float32"), k, v, at([0, -1, 1, -1], [-1, -1, -1, 9]))
    np.testing.assert_array_equal(store.entries.at.positions, [[0, 1, -1], [9, -1, -1]])
    np.testing.assert_array_equal(store.next, [2, 1])
    np.testing.assert_array_equal(
        store.entries.k[0, :, :2], k[0, :, jnp.array([0, 2])].swapaxes(0, 1)
    )
    np.testing.assert_array_equal(store.entries.v[1, :, 0], v[1, :, 3])
    assert not np.any(store.entries.k[1, :, 1:])


def test_a_store_keeps_segments_if_it_is_packed():
    k, v = entries(3)
    where = at([0, 1, 0], [4, 5, 6])._replace(segments=jnp.array([[1, 1, 2], [3, 3, -1]]))
    store = write(Store.empty(2, 2, 4, 8, "float32", packed=True), k, v, where)
    np.testing.assert_array_equal(store.entries.at.segments, [[1, 1, 2, -1], [3, 3, -1, -1]])
    for wrong in (where._replace(segments=None), where._replace(positions=None)):
        with pytest.raises(ValueError, match="wants the positions of its entries"):
            write(store, k, v, wrong)
    with pytest.raises(ValueError, match="at least 1 slot, not 0"):
        Store.empty(2, 2, 0, 8, "float32")


@pytest.mark.parametrize(
    ("storage", "bound"), [("float32", 0.0), ("bfloat16", 2.0**-8), ("int8", 0.5 / 127)]
)
def test_the_error_of_storage_is_bounded(storage, bound):
    """bfloat16: relative to each number; int8: relative to the largest of each vector."""
    k, v = entries(50)
    v = v * jnp.array([1e-3, 1.0])[:, None, None, None]
    kept = Entries.of(k, v, at(range(50)), storage)
    assert kept.k.dtype == kept.v.dtype == storage
    every = jnp.broadcast_to(jnp.arange(50), (2, 2, 50))
    for ours, theirs in zip(kept.take(every), (k, v), strict=True):
        size = jnp.abs(theirs)
        size = size.max(axis=-1, keepdims=True) if storage == "int8" else size
        assert (np.abs(ours - theirs) <= bound * size * 1.0001).all()
    zero = Entries.of(jnp.zeros_like(k), jnp.zeros_like(v), at(range(50)), storage)
    assert not any(np.any(x) for x in zero.take(every))


@pytest.mark.parametrize("storage", ["float32", "int8"])
@pytest.mark.parametrize("first", [2, 9])
def test_a_resized_store_is_as_if_it_had_always_been_so(storage, first):
    """If nothing was forgotten that it would hold: the order of slots may differ."""
    k, v = entries(14)

    def filled(store, start, stop):
        part = slice(start, stop)
        return write(
            store, k[:, :, part], v[:, :, part], at(range(start, stop), range(start, stop))
        )

    def held(store):
        order = np.argsort(store.entries.at.positions, axis=1, stable=True)
        row = np.arange(2)[:, None]
        leaves = jax.tree.leaves(replace(store.entries, at=None))
        return [leaf[row, :, order] for leaf in leaves] + [store.entries.at.positions[row, order]]

    for before, after in ((5, 9), (9, 5), (5, 5), (9, 3)):
        ours = filled(Store.empty(2, 2, before, 8, storage), 0, first).resized(after)
        keeps = min(before, after)
        theirs = filled(Store.empty(2, 2, after, 8, storage), max(0, first - keeps), first)
        jax.tree.map(np.testing.assert_array_equal, held(ours), held(theirs))
        ours, theirs = (filled(store, first, 14) for store in (ours, theirs))
        jax.tree.map(np.testing.assert_array_equal, held(ours), held(theirs))


def test_nothing_is_seen_twice_and_nothing_lost_before_the_memory_is_full():
    q, k = np.arange(60)[:, None], np.arange(60)
    for local in (Local(4), Recurrent(7, 3)):
        seen = local.allows(q, k).astype(int) + Beyond(local, 60).allows(q, k)
        np.testing.assert_array_equal(seen, k <= q)


def test_beyond_counts_what_it_gives():
    allowed = Beyond(Local(4), 16).allows(np.arange(60)[:, None], np.arange(60))
    np.testing.assert_array_equal(allowed.sum(axis=1), np.clip(np.arange(60) - 3, 0, 16))
    assert not (allowed & Local(4).allows(np.arange(60)[:, None], np.arange(60))).any()


def small_model(memory=16):
    mixer = replace(GATED, memory=memory, top_k=16)
    return Transformer(layers=1, model=MODEL, hidden=16, mixer=mixer, dropout=0.0)


def last_logits(config, tokens):
    return config.build(VOCAB, jnp.float32, seed=0)(tokens)[0][:, -1]


def test_a_with_memory_retrieves_a_farther_key():
    config = small_model()
    larger = with_memory(config, 40)
    tokens = jax.random.randint(jax.random.key(5), (1, 37), 0, VOCAB - 1)
    changed = tokens.at[0, 2].set(VOCAB - 1)  # 34 tokens back
    same = [last_logits(config, t) for t in (tokens, changed)]
    np.testing.assert_array_equal(*same)
    tokens, changed = tokens.at[0, -1].set(VOCAB - 1), changed.at[0, -1].set(VOCAB - 1)
    near, far = (last_logits(larger, t) for t in (tokens, changed))  # asks for its like
    assert np.abs(near - far).max() > 1e-4
    params = [nnx.state(c.build(VOCAB, jnp.float32, seed=0)) for c in (config, larger)]
    jax.tree.map(np.testing.assert_array_equal, *params)


def test_a_with_memory_needs_a_memory():
    with pytest.raises(ValueError, match="no memory to enlarge"):
        with_memory(Transformer(layers=1), 100)
    with pytest.raises(ValueError, match="can't give top_k 16 keys"):
        with_memory(small_model(), 8)
    mixed = replace(small_model(), layers=2, mixer=(Attention(), GATED))
    assert with_memory(mixed, 99).mixer == (Attention(), replace(GATED, memory=99))


@pytest.mark.parametrize("chunk", [pytest.param(5, marks=pytest.mark.slow), 64])
def test_a_loaded_corpus_can_be_retrieved(chunk):
    model = small_model(memory=60).build(VOCAB, jnp.float32, seed=0)
    rng = np.random.default_rng(0)
    documents = [rng.integers(0, VOCAB, length) for length in (13, 1, 20)]
    question = jnp.asarray(rng.integers(0, VOCAB, (2, 6)))
    state = load_corpus(model, model.init_state(2, 100), documents, chunk)
    np.testing.assert_array_equal(state.length, 34)
    answer, _ = model(question, state=state)
    everything = jnp.concatenate([jnp.tile(jnp.concatenate(documents), (2, 1)), question], axis=1)
    np.testing.assert_allclose(answer, model(everything)[0][:, 34:], atol=1e-5)
    without, _ = model(question, state=model.init_state(2, 100))
    assert np.abs(answer[:, -1] - without[:, -1]).max() > 1e-3


def test_a_corpus_is_loaded_into_a_state_of_one_document():
    model = small_model().build(VOCAB, jnp.float32, seed=0)
    with pytest.raises(ValueError, match="keeps documents apart"):
        load_corpus(model, model.training_state(2), [np.arange(3)])
    with pytest.raises(ValueError, match="at least 1 token, not 0"):
        load_corpus(model, model.init_state(2, 9), [np.arange(3)], chunk=0)
    tokens = jnp.zeros((2, 3), jnp.int32)
    with pytest.raises(ValueError, match="packed documents can't continue"):
        model(tokens, Places(segments=tokens), model.init_state(2, 9))


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"memory": 8, "top_k": 9}, "a memory of 8 can't give top_k 9 keys"),
        ({"window": 0}, "window must be at least 1, not 0"),
        ({"memory": -1}, "memory must be at least 1, not -1"),
        ({"top_k": 0}, "top_k must be at least 1, not 0"),
        ({"storage": "int4"}, "storage is 'int4'; known are float32"),
        ({"approximate": 1.5}, "approximate is a share"),
        ({"heads": 4, "kv_heads": 3}, "multiple of kv_heads"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(fields, complaint):
    with pytest.raises(ValueError, match=complaint):
        Memorizing(**fields)


def test_the_pairs_that_are_scored_are_counted():
    local = sum(min(t + 1, 4) for t in range(100))
    assert GATED.scored(MODEL, 100) == MODEL * (local + 3 * 100)
