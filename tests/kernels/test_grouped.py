"""Attention within groups: held to a dense textbook with its gradients, and to its memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention.grouped import grouped
from kernels.attention.places import Places
from kernels.attention.selected import chunked, clustered
from kernels.attention.term import SumTerm
from longctx.attention.patterns import Causal, Local
from longctx.attention.positions import FIRE, ALiBi, RelativeEmbedding, T5Bias, Together
from longctx.attention.positions.relative import RelativeTerm

pytestmark = pytest.mark.usefixtures("quick_compilation")
BATCH, HEADS, DIM = 2, 3, 8
LATEST = Local(4)


def textbook(q, k, v, seen, term, q_at, k_at):
    """Return (out, lse) of dense attention over the pairs of a mask [batch heads q_len k_len]."""
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * DIM**-0.5
    if term is not None:
        scores += term.scores(q * DIM**-0.5, q_at, k_at)
    scores = jnp.where(seen, scores, -jnp.inf)
    lse = jax.nn.logsumexp(jnp.where(seen.any(-1, keepdims=True), scores, 0.0), axis=-1)
    lse = jnp.where(seen.any(-1), lse, -jnp.inf)
    weights = jnp.where(seen, jnp.exp(scores - jnp.where(seen.any(-1), lse, 0.0)[..., None]), 0.0)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v), lse


def last_members(q_group, k_group, members, q_at, k_at, strict):
    """Return which keys each query sees, counted one by one."""
    shape = (*q_group.shape, k_group.shape[2])
    seen = np.zeros(shape, bool)
    q_group, k_group = np.asarray(q_group), np.asarray(k_group)
    (q_pos, q_doc), (k_pos, k_doc) = (documents(at, shape[0]) for at in (q_at, k_at))
    for b, h, i in np.ndindex(*shape[:3]):
        if q_group[b, h, i] < 0 or q_pos[b, i] < 0:
            continue
        keys = [
            j
            for j in range(shape[3])
            if k_group[b, h, j] == q_group[b, h, i] and k_doc[b, j] == q_doc[b, i]
            and 0 <= k_pos[b, j] <= q_pos[b, i] - strict
        ]  # fmt: skip
        keys.sort(key=lambda j: k_pos[b, j])
        seen[b, h, i, keys[-members:]] = True
    return seen


def documents(at, batch):
    positions = np.broadcast_to(at.positions, (batch, at.positions.shape[1]))
    if at.segments is None:
        return positions, np.zeros_like(positions)
    return positions, np.broadcast_to(at.segments, positions.shape)


def inputs(q_len, k_len, seed=0):
    keys = jax.random.split(jax.random.key(seed), 5)
    q = jax.random.normal(keys[0], (BATCH, HEADS, q_len, DIM))
    k, v = jax.random.normal(keys[1], (2, BATCH, HEADS, k_len, DIM))
    table = jax.random.normal(keys[2], (HEADS, 7, DIM))
    return q, k, v, table


def groups_of(kind, q_len, k_len):
    """Return (groups of queries, of keys, how many)."""
    draw = np.random.default_rng(0)
    if kind == "one":
        return np.zeros((BATCH, HEADS, q_len), int), np.zeros((BATCH, HEADS, k_len), int), 1
    if kind == "own":
        own = np.broadcast_to(np.arange(k_len), (BATCH, HEADS, k_len))
        return own[..., k_len - q_len :], own, k_len
    high = {"few": 3, "uneven": 5}[kind]
    p = np.ones(high) / high if kind == "few" else np.array([0.8, 0.14, 0.04, 0.02, 0.0])
    q, k = (draw.choice(high, (BATCH, HEADS, n), p=p) for n in (q_len, k_len))
    q[0, 0, ::4], k[1, 2, ::3] = -1, -1
    return q, k, high


def standing(kind, q_len, k_len):
    """Return where queries and keys stand."""
    index = np.arange(k_len)
    if kind == "plain":
        at = Places(jnp.asarray(index[None]))
        return at._replace(positions=at.positions[:, k_len - q_len :]), at
    if kind == "cache":  # rows of different lengths, slots that are empty
        filled = np.array([[k_len], [k_len - 5]])
        k_at = jnp.asarray(np.where(index < filled, index, -1))
        last = jnp.asarray(filled - q_len + np.arange(q_len))
        return Places(last), Places(k_at)
    segments = np.repeat([4, 2, -1, 9], [7, 11, 3, k_len - 21])
    starts = np.array([np.flatnonzero(segments == s)[0] for s in segments])
    positions = np.where(segments < 0, -1, index - starts)
    at = Places(jnp.asarray(positions[None]), jnp.asarray(segments[None]))
    return at, at


CASES = [
    ("few", "plain", 29, 29, 5), ("few", "plain", 1, 29, 5), ("few", "cache", 6, 29, 4),
    ("uneven", "plain", 40, 40, 3), ("uneven", "packed", 40, 40, 4), ("one", "plain", 33, 33, 8),
    ("one", "packed", 33, 33, 50), ("own", "plain", 20, 20, 3), ("few", "plain", 30, 30, 1),
    ("uneven", "cache", 1, 30, 4),
]  # fmt: skip


@pytest.mark.parametrize("strict", [False, True], ids=["", "strict"])
@pytest.mark.parametrize(("kind", "where", "q_len", "k_len", "members"), CASES)
def test_groups_are_the_textbook_with_gradients(kind, where, q_len, k_len, members, strict):
    q_group, k_group, groups = groups_of(kind, q_len, k_len)
    q_at, k_at = standing(where, q_len, k_len)
    seen = last_members(q_group, k_group, members, q_at, k_at, strict)
    q_group, k_group = jnp.asarray(q_group), jnp.asarray(k_group)

    def ours(q, k, v, table):
        return grouped(
            q, k, v, q_group, k_group, pattern=Local(members), groups=groups,
            term=RelativeTerm(table, "zero"), q_at=q_at, k_at=k_at, strict=strict,
        )  # fmt: skip

    def theirs(q, k, v, table):
        return textbook(q, k, v, seen, RelativeTerm(table, "zero"), q_at, k_at)

    agree(ours, theirs, inputs(q_len, k_len))


def agree(ours, theirs, args):
    """Hold (out, lse) and all gradients to the textbook's."""

    def loss(f, *args):
        out, lse = f(*args)
        finite = jnp.where(lse > -jnp.inf, lse, 0.0)
        return (out * jnp.cos(jnp.arange(DIM))).sum() + jnp.sin(finite).sum(), (out, lse)

    results = [
        jax.jit(
            jax.value_and_grad(lambda *a, f=f: loss(f, *a), argnums=range(len(args)), has_aux=True)
        )(*args)
        for f in (ours, theirs)
    ]
    ((_, mine), grads), ((_, wanted), want_grads) = results
    for x, y in zip(mine, wanted, strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    for x, y in zip(*map(jax.tree.leaves, (grads, want_grads)), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-4)


TERMS = [
    T5Bias(buckets=8, max_distance=20),
    ALiBi(),
    RelativeEmbedding(7, per_head=False),
    Together((RelativeEmbedding(7), T5Bias(buckets=8, max_distance=20))),
]


@pytest.mark.parametrize("scheme", TERMS, ids=lambda scheme: type(scheme).__name__)
def test_terms_see_true_distances(scheme):
    q_group, k_group, groups = groups_of("few", 29, 29)
    at, _ = standing("plain", 29, 29)
    seen = last_members(q_group, k_group, 6, at, at, False)
    args = inputs(29, 29)
    graphdef, params = nnx.split(scheme.in_attention(HEADS, DIM, nnx.Rngs(0)))

    def ours(q, k, v, params):
        term = nnx.merge(graphdef, params).term()
        return grouped(
            q, k, v, jnp.asarray(q_group), jnp.asarray(k_group), pattern=Local(6), groups=groups,
            term=term, q_at=at, k_at=at,
        )  # fmt: skip

    def theirs(q, k, v, params):
        return textbook(q, k, v, seen, nnx.merge(graphdef, params).term(), at, at)

    agree(ours, theirs, (*args[:3], params))


def test_nested_sums_of_terms_are_served():
    at, _ = standing("plain", 20, 20)
    q, k, v, table = inputs(20, 20)
    one = RelativeTerm(table, "clip")
    group = jnp.zeros((BATCH, HEADS, 20), int)
    seen = last_members(group, group, 4, at, at, False)
    term = SumTerm((SumTerm((one, one)), one))
    ours = grouped(q, k, v, group, group, pattern=Local(4), groups=1, term=term, q_at=at, k_at=at)
    for x, y in zip(ours, textbook(q, k, v, seen, term, at, at), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_what_is_not_served_is_refused():
    at, _ = standing("plain", 20, 20)
    q, k, v, table = inputs(20, 20)
    group = jnp.zeros((BATCH, HEADS, 20), int)

    def call(pattern=LATEST, at=at, term=None):
        return grouped(
            q, k, v, group, group, pattern=pattern, groups=1, term=term, q_at=at, k_at=at
        )

    with pytest.raises(ValueError, match="needs a pattern with a window, not Causal"):
        call(pattern=Causal())
    with pytest.raises(ValueError, match="positions of all tokens"):
        call(at=Places())
    for term in (
        FIRE().in_attention(HEADS, DIM, nnx.Rngs(0)).term(),
        RelativeTerm(table, "clip", table),
    ):
        with pytest.raises(NotImplementedError, match="terms of the distance that add to scores"):
            call(term=term)


@pytest.mark.parametrize("where", ["plain", "packed"])
def test_each_cluster_takes_its_best(where):
    members, clusters, n = 6, 4, 40
    at, _ = standing(where, n, n)
    positions, segments = (np.asarray(x)[0] for x in documents(at, 1))
    scores = np.random.default_rng(0).normal(size=(2, BATCH, HEADS, clusters, n))
    scores[..., positions < 0] = -np.inf
    q_in, k_in = (np.zeros((BATCH, HEADS, clusters, n), bool) for _ in range(2))
    for chosen, score in zip((q_in, k_in), scores, strict=True):
        np.put_along_axis(chosen, np.argsort(-score, axis=-1)[..., :members], True, axis=-1)
    causal = positions[:, None] >= positions[None]
    causal &= segments[:, None] == segments[None]
    q_score, k_score = (jnp.asarray(np.where(np.isinf(s), 9.0, s), jnp.float32) for s in scores)

    def ours(q, k, v, table):
        return clustered(
            q, k, v, q_score, k_score, pattern=Causal(), members=members, at=at,
            term=RelativeTerm(table, "clip"),
        )  # fmt: skip

    def theirs(q, k, v, table):
        outs, lses, saws = [], [], []
        for c in range(clusters):
            seen = q_in[:, :, c, :, None] & k_in[:, :, c, None] & causal
            out, lse = textbook(q, k, v, seen, RelativeTerm(table, "clip"), at, at)
            saws.append(seen.any(-1))
            outs.append(out)
            lses.append(jnp.where(seen.any(-1), lse, 0.0))
        count = np.sum(saws, axis=0)
        lse = sum(lses) / np.maximum(count, 1)
        lse = jnp.where(count > 0, lse, -jnp.inf)
        return sum(outs) / np.maximum(count, 1)[..., None], lse

    agree(ours, theirs, inputs(n, n))


@pytest.mark.parametrize("where", ["plain", "packed"])
def test_chunks_of_sorted_tokens_see_the_one_before(where):
    members, n = 7, 40
    at, _ = standing(where, n, n)
    positions, segments = (np.asarray(x)[0] for x in documents(at, 1))
    group = np.random.default_rng(0).integers(0, 3, (BATCH, HEADS, n))
    seen = np.zeros((BATCH, HEADS, n, n), bool)
    for b, h in np.ndindex(BATCH, HEADS):
        order = sorted(range(n), key=lambda i: (positions[i] < 0, group[b, h, i], i))
        chunk = {token: place // members for place, token in enumerate(order)}
        for i, j in np.ndindex(n, n):
            near = 0 <= chunk[i] - chunk[j] <= 1 and group[b, h, i] == group[b, h, j]
            before = 0 <= positions[j] < positions[i] and segments[i] == segments[j]
            seen[b, h, i, j] = near and before

    def ours(q, k, v, table):
        return chunked(
            q, k, v, jnp.asarray(group), pattern=Causal(), members=members, at=at,
            term=RelativeTerm(table, "clip"),
        )  # fmt: skip

    def theirs(q, k, v, table):
        return textbook(q, k, v, seen, RelativeTerm(table, "clip"), at, at)

    agree(ours, theirs, inputs(n, n))


def test_memory_grows_with_the_length_times_the_members():
    """With sqrt(len) groups and members: no more than len ** 1.6, gradients included."""

    def compiled_bytes(length):
        root = int(length**0.5)
        q = jax.ShapeDtypeStruct((1, 1, length, DIM), jnp.float32)
        group = jax.ShapeDtypeStruct((1, 1, length), jnp.int32)
        at = Places(jnp.arange(length)[None])

        @jax.jit
        @jax.value_and_grad
        def loss(q, group):
            call = {"pattern": Local(root), "groups": root, "q_at": at, "k_at": at}
            return grouped(q, q, q, group, group, **call)[0].sum()

        return loss.lower(q, group).compile().memory_analysis().temp_size_in_bytes

    small, large = compiled_bytes(4096), compiled_bytes(16384)
    assert large <= 4**1.6 * small
    assert large < 16384**2  # a quarter of one float32 score for every pair
