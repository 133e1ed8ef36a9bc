"""The formulas of position schemes, against slow restatements and golden tables."""

import json
from functools import cache, partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from kernels.attention import Places, SumTerm, Term
from longctx.attention.layer import Attention
from longctx.attention.positions import (
    FIRE,
    ALiBi,
    ConcatenatedSinusoidal,
    Learned,
    NoPosition,
    Position,
    RelativeEmbedding,
    RoPE,
    Sinusoidal,
    T5Bias,
    Together,
    rope_scaling,
)
from longctx.attention.positions.alibi import slopes
from longctx.attention.positions.relative import RelativeTerm
from longctx.transformer import Transformer
from longctx.variants import members

GOLDEN = Path(__file__).parent / "golden"
HEADS, DIM = 4, 4


@cache
def term_of(scheme: Position) -> Term:
    term = scheme.in_attention(HEADS, DIM, nnx.Rngs(0)).term()
    assert term is not None
    return term


def places(positions: list[int]) -> Places:
    return Places(jnp.array([positions]))


def queries(length: int, seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (1, HEADS, length, DIM))


@jax.jit
def scores_of(term: Term, q: jax.Array, q_at: Places, k_at: Places) -> jax.Array:
    return term.scores(q, q_at, k_at)


EVERY = [scheme for kind in members(Position).values() for scheme in kind.small()]
TERMS = [
    s for s in EVERY if s.in_attention(HEADS, DIM, nnx.Rngs(0)).term() is not None and not s.axes
]
BY_DISTANCE = [s for s in TERMS if term_of(s).by_distance(np.arange(3)) is not None]


def test_the_lists_that_tests_run_over_hold_what_they_should():
    kinds = {type(scheme).__name__ for scheme in TERMS}
    assert {"ALiBi", "FIRE", "RelativeEmbedding", "T5Bias", "Together"} <= kinds
    assert all(term_of(scheme).relative for scheme in BY_DISTANCE)
    assert all(kind.paper for kind in (*members(Position).values(),) if kind is not Together)
    assert all(kind.paper for kind in members(rope_scaling.RopeScaling).values())


@pytest.mark.parametrize("scheme", EVERY, ids=str)
def test_a_scheme_says_truly_what_it_does_to_queries(scheme):
    place, q = scheme.in_attention(HEADS, DIM, nnx.Rngs(0)), queries(3)
    at = places([0, 2, 30])._replace(coordinates=jnp.zeros((1, 3, scheme.axes), jnp.int32))
    assert scheme.rotates != jnp.array_equal(place.rotate(q, at.positions), q)
    term = place.term()
    if term is not None:
        other = scores_of(term, 2 * q, at, at)
        assert scheme.reads_queries != jnp.array_equal(other, scores_of(term, q, at, at))


class TestTerms:
    """What every score term owes."""

    Q, K = [0, 3, 77, 200, 1003], [0, 1, 5, 60, 75, 999, 1500]

    @pytest.mark.parametrize("scheme", BY_DISTANCE, ids=str)
    def test_scores_and_values_are_what_is_said_of_the_distances(self, scheme):
        term, q = term_of(scheme), queries(len(self.Q))
        scores = np.asarray(scores_of(term, q, places(self.Q), places(self.K)))
        weights = jax.random.uniform(jax.random.key(1), (1, HEADS, len(self.Q), len(self.K)))
        q, u = np.asarray(q), np.asarray(weights)
        values = np.zeros((HEADS, len(self.Q), DIM))
        pairs = list(product(range(len(self.Q)), range(len(self.K))))
        said = term.by_distance(np.array([self.Q[i] - self.K[j] for i, j in pairs]))
        assert said is not None
        said = [None if x is None else np.broadcast_to(x, (HEADS, *x.shape[1:])) for x in said]
        embeddings, bias, value_table = said
        for h in range(HEADS):
            for n, (i, j) in enumerate(pairs):
                want = 0.0 if embeddings is None else float(q[0, h, i] @ embeddings[h, n])
                want += 0.0 if bias is None else float(bias[h, n])
                assert float(scores[0, h, i, j]) == pytest.approx(want, rel=1e-4, abs=1e-5)
                if value_table is not None:
                    values[h, i] += u[0, h, i, j] * value_table[h, n]
        assert term.adds_values == (value_table is not None)
        if term.adds_values:
            got = jax.jit(type(term).values)(term, weights, places(self.Q), places(self.K))
            np.testing.assert_allclose(got[0], values, atol=1e-5)

    @pytest.mark.parametrize("scheme", TERMS, ids=str)
    def test_relative_terms_do_not_see_a_shift_and_others_do(self, scheme):
        term, q = term_of(scheme), queries(len(self.Q))
        plain = scores_of(term, q, places(self.Q), places(self.K))
        q_at, k_at = (places([x + 500 for x in at]) for at in (self.Q, self.K))
        same = np.allclose(scores_of(term, q, q_at, k_at), plain, atol=1e-5)
        assert same == term.relative

    @pytest.mark.parametrize("scheme", TERMS, ids=str)
    def test_padding_and_later_keys_are_finite_forward_and_backward(self, scheme):
        at = places([-1, 0, 1, 2, 40, -1])

        @jax.jit
        @partial(jax.value_and_grad, argnums=(0, 1))
        def total(term: Term, q: jax.Array) -> jax.Array:
            return (term.scores(q, at, at) ** 2).sum()

        leaves = jax.tree.leaves(total(term_of(scheme), queries(6)))
        assert all(np.isfinite(leaf).all() for leaf in leaves)


class TestRelativeEmbedding:
    """`q . e_distance` and the value side."""

    @pytest.mark.parametrize("beyond", ["clip", "zero"])
    @pytest.mark.parametrize("tables", [1, 2])
    @pytest.mark.parametrize("two_sided", [False, True])
    def test_it_is_a_dot_product_by_distance(self, beyond, tables, two_sided):
        q = jax.random.normal(jax.random.key(0), (1, 2, 6, 4))
        table = jax.random.normal(jax.random.key(1), (tables, 5 if two_sided else 3, 4))
        term = RelativeTerm(table, beyond, two_sided=two_sided)
        q_pos, k_pos = [10, 11, 12, 13, 14, 15], [8, 14, 10]
        scores = np.asarray(scores_of(term, q, places(q_pos), places(k_pos)))
        q, table = np.asarray(q), np.asarray(table)
        for head, (i, query), (j, key) in product(range(2), enumerate(q_pos), enumerate(k_pos)):
            distance = query - key if two_sided else max(query - key, 0)
            row = table[head % tables, min(max(distance, -2), 2) + (2 if two_sided else 0)]
            row = np.zeros(4) if beyond == "zero" and abs(distance) > 2 else row
            np.testing.assert_allclose(
                scores[0, head, i, j], q[0, head, i] @ row, rtol=1e-4, atol=1e-6
            )

    def test_attention_adds_the_value_side_to_the_values(self):
        """Equal weights, values of 0: what comes out is the mean of the values' embeddings."""
        scheme = RelativeEmbedding(max_distance=3, values=True)
        layer = Attention(heads=2, position=scheme).build(8, jnp.float32, nnx.Rngs(0))
        for matrix in (layer.q, layer.v):
            matrix.kernel[...] = jnp.zeros((8, 8))
        layer.out.kernel[...] = jnp.eye(8)
        table = np.asarray(layer.place.value_table[...])
        got = np.asarray(jax.jit(layer)(jnp.ones((1, 5, 8)))[0]).reshape(5, 2, 4)
        for i, head in product(range(5), range(2)):
            want = np.mean([table[head, min(i - j, 2)] for j in range(i + 1)], axis=0)
            np.testing.assert_allclose(got[i, head], want, atol=1e-6)

    def test_models_trained_before_there_were_options_still_fit(self):
        want = jax.random.normal(nnx.Rngs(7).params(), (2, 5, 4)) * 4**-0.5
        for values in (False, True):
            place = RelativeEmbedding(5, values=values).in_attention(2, 4, nnx.Rngs(7))
            state = nnx.state(place)
            assert set(state) == ({"table", "value_table"} if values else {"table"})
            np.testing.assert_array_equal(state["table"][...], want)


GOLDEN_T5 = json.loads((GOLDEN / "t5.json").read_text())


class TestT5Bias:
    """Buckets of distances."""

    @pytest.mark.parametrize("case", GOLDEN_T5, ids=lambda case: f"{case['buckets']}")
    def test_buckets_are_the_golden_ones(self, case):
        """Theirs come from float32 logarithms; for these settings that makes no difference."""
        want = np.concatenate([np.full(count, bucket) for bucket, count in case["runs"]])
        scheme = T5Bias(case["buckets"], case["max_distance"], case["two_sided"])
        found = scheme.bucket(np.arange(case["first"], 1001))
        np.testing.assert_array_equal(found, want)
        if not case["two_sided"]:
            np.testing.assert_array_equal(scheme.bucket(np.arange(-50, 0)), 0)

    @pytest.mark.parametrize(
        ("buckets", "max_distance", "two_sided"),
        [(32, 128, True), (18, 128, True), (36, 32, False), (2, 2, False), (7, 50, False)],
    )
    def test_rounding_moves_no_boundary(self, buckets, max_distance, two_sided):
        """Integers decide: ln(n/e) / ln(m/e) * k >= j where n^k e^j >= m^j e^k."""
        scheme = T5Bias(buckets, max_distance, two_sided)
        e = scheme.exact
        k = (buckets // 2 if two_sided else buckets) - e
        want = []
        for n in range(e, max_distance + 3):
            above = [j for j in range(k) if n**k * e**j >= max_distance**j * e**k]
            want.append(e + max(above))
        found = scheme.bucket(np.arange(e, max_distance + 3))
        np.testing.assert_array_equal(found, want)

    def test_each_head_has_a_bias_for_each_bucket(self):
        scheme = T5Bias(buckets=8, max_distance=20)
        term = scheme.in_attention(3, 4, nnx.Rngs(0)).term()
        q = jnp.zeros((1, 3, 1, 4))
        scores = np.asarray(term.scores(q, places([30]), places([30, 29, 26, 25, 11, 10, 0])))
        np.testing.assert_array_equal(scores[0, :, 0], term.table[:, [0, 1, 4, 4, 7, 7, 7]])


class TestALiBi:
    """Slopes and distances."""

    @pytest.mark.parametrize(
        ("heads", "powers"),
        [
            (1, [-8]),
            (8, [-1, -2, -3, -4, -5, -6, -7, -8]),
            (12, [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]),
            (5, [-2, -4, -6, -8, -1]),
        ],
    )
    def test_slopes_are_the_papers(self, heads, powers):
        assert slopes(heads).dtype == np.float32
        np.testing.assert_allclose(slopes(heads), 2.0 ** np.array(powers), rtol=1e-7)

    @pytest.mark.parametrize("two_sided", [False, True])
    def test_far_distances_are_counted_exactly_in_bfloat16(self, two_sided):
        term = ALiBi(two_sided=two_sided).in_attention(2, 4, nnx.Rngs(0)).term()
        q = jnp.zeros((1, 2, 1, 4), jnp.bfloat16)
        got = term.scores(q, places([100_001]), places([0, 100_000, 100_001, 100_004]))
        assert got.dtype == jnp.float32
        counted = np.array([100_001, 1, 0, 3 if two_sided else 0])
        np.testing.assert_array_equal(got[0, :, 0], [-counted / 16, -counted / 256])

    def test_it_has_no_parameters(self):
        assert not jax.tree.leaves(nnx.state(ALiBi().in_attention(4, 4, nnx.Rngs(0))))


class TestFIRE:
    """A network of the relative distance."""

    def test_scores_are_the_papers_formula(self):
        scheme = FIRE(width=3, scale=0.2, threshold=10.0)
        place = scheme.in_attention(2, 4, nnx.Rngs(0))
        inner, offset, outer = (
            np.asarray(p[...]) for p in (place.inner, place.offset, place.outer)
        )
        q_pos, k_pos = [0, 4, 30], [0, 3, 29]
        q = jnp.zeros((1, 2, 3, 4))
        scores = np.asarray(scores_of(place.term(), q, places(q_pos), places(k_pos)))

        def psi(x: float) -> float:
            return np.log(0.2 * x + 1)

        for (i, query), (j, key) in product(enumerate(q_pos), enumerate(k_pos)):
            ratio = psi(max(query - key, 0)) / psi(max(10.0, query))
            want = outer @ np.maximum(ratio * inner + offset, 0)
            np.testing.assert_allclose(scores[0, :, i, j], want, rtol=1e-4, atol=1e-6)

    def test_scale_and_threshold_are_learned_and_stay_positive(self):
        place = FIRE(width=4, threshold=8.0).in_attention(2, 4, nnx.Rngs(0))
        graphdef, params = nnx.split(place)
        at, q = places([0, 5, 20]), jnp.zeros((1, 2, 3, 4))

        def total(params):
            return (nnx.merge(graphdef, params).term().scores(q, at, at) ** 2).sum()

        grads = jax.jit(jax.grad(total))(params)
        assert len(jax.tree.leaves(grads)) == 5
        assert all(np.isfinite(g).all() and np.any(g) for g in jax.tree.leaves(grads))
        pushed = nnx.merge(graphdef, jax.tree.map(lambda x: x - 9.0, params)).term()
        assert pushed.scale > 0
        assert pushed.threshold > 0


class TestTogether:
    """Several schemes at once."""

    def test_nested_ones_are_merged(self):
        inner = Together((RoPE(), ALiBi()))
        assert Together((NoPosition(), inner)).schemes == (NoPosition(), RoPE(), ALiBi())

    def test_each_acts_once_on_the_embeddings_of_a_network(self):
        learned, beside = Learned(length=9), ConcatenatedSinusoidal(width=2)
        mixers = tuple(
            Attention(heads=1, position=position)
            for position in (Together((learned, beside)), beside, Together((beside, ALiBi())))
        )
        config = Transformer(layers=3, model=8, hidden=8, mixer=mixers, dropout=0.0)
        model = config.build(5, jnp.float32, seed=0)
        assert len(model.places) == 2
        tokens, at = jnp.array([[1, 2, 3]]), jnp.array([[0, 1, 5]])
        first, second = model.places
        want = second(first(model.embed(tokens) * 8**0.5, at), at)
        np.testing.assert_array_equal(model.embedded(tokens, at, None), want)

    def test_rotations_follow_each_other(self):
        place = Together((RoPE(base=50.0), RoPE(base=50.0))).in_attention(1, 4, nnx.Rngs(0))
        x, at = jax.random.normal(jax.random.key(0), (1, 1, 3, 4)), jnp.array([[0, 1, 5]])
        once = RoPE(base=50.0).in_attention(1, 4, nnx.Rngs(0))
        np.testing.assert_allclose(place.rotate(x, at), once.rotate(x, 2 * at), atol=1e-5)

    def test_terms_add_up(self):
        schemes, rngs = (RelativeEmbedding(3), T5Bias(4, 9), ALiBi()), nnx.Rngs(0)
        parts = [scheme.in_attention(HEADS, DIM, rngs).term() for scheme in schemes]
        q, at, term = queries(3), places([0, 1, 5]), term_of(Together(schemes))
        assert isinstance(term, SumTerm)
        want = sum(part.scores(q, at, at) for part in parts)
        np.testing.assert_allclose(term.scores(q, at, at), want, atol=1e-6)

    def test_it_does_nothing_where_no_scheme_does(self):
        assert Together((RoPE(), Sinusoidal())).in_attention(2, 4, nnx.Rngs(0)).term() is None

    def test_it_knows_the_fewest_positions_and_reads_the_most_axes(self, monkeypatch):
        schemes = Together((Learned(9), RoPE(), Learned(5), ALiBi()))
        assert (schemes.limit, schemes.axes) == (5, 0)
        assert Together((RoPE(), ALiBi())).limit is None
        monkeypatch.setattr(RoPE, "axes", 2)
        assert schemes.axes == 2


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: RelativeEmbedding(max_distance=0), "max_distance of at least 1, not 0"),
        (lambda: T5Bias(buckets=1), "buckets of at least 2, not 1"),
        (lambda: T5Bias(buckets=2, two_sided=True), "buckets of at least 4, not 2"),
        (lambda: T5Bias(buckets=7, two_sided=True), "even number of buckets, not 7"),
        (lambda: T5Bias(max_distance=16), "max_distance of at least 17, not 16"),
        (lambda: FIRE(width=0), "width of at least 1, not 0"),
        (lambda: FIRE(scale=0.0), "scale above 0, not 0.0"),
        (lambda: FIRE(threshold=-1.0), "threshold above 0, not -1.0"),
        (lambda: Together((RoPE(), RelativeEmbedding())), "beside a rotation take a bias"),
        (lambda: Together(()), "at least 1 position scheme"),
        (lambda: Together((RoPE,)), "tuple of at least 1 position scheme"),
        (lambda: Together([RoPE()]), "tuple of at least 1 position scheme"),
    ],
)
def test_bad_configs_say_what_is_wrong(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()
