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
from longctx.attention.positions.rope_scaling import NTK, DynamicNTK, LinearScaling, Llama3, YaRN
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


class TestEmbeddings:
    """Schemes that act on the embeddings."""

    X = jax.random.normal(jax.random.key(0), (2, 3, 8))
    AT = np.array([[0, 1, 50]])

    def sinusoids(self, width: int, base: float) -> np.ndarray:
        want = np.zeros((3, width))
        for row, position in enumerate(self.AT[0]):
            for i in range(width // 2):
                phase = position / base ** (2 * i / width)
                want[row, i], want[row, width // 2 + i] = np.sin(phase), np.cos(phase)
        return want

    def test_sinusoids_are_the_papers(self):
        place = Sinusoidal().in_embedding(8, nnx.Rngs(0))
        assert place is not None
        got = place(self.X, jnp.array(self.AT))
        np.testing.assert_allclose(got, self.X + self.sinusoids(8, 10_000.0), atol=1e-5)

    @pytest.mark.parametrize("rows", [1, 2])
    def test_concatenated_sinusoids_are_mixed_in_by_one_matrix(self, rows):
        place = ConcatenatedSinusoidal(width=6, base=100.0).in_embedding(8, nnx.Rngs(0))
        (kernel,) = jax.tree.leaves(nnx.state(place))
        assert kernel.shape == (14, 8)
        got = place(self.X, jnp.repeat(jnp.array(self.AT), rows, axis=0))
        beside = np.broadcast_to(self.sinusoids(6, 100.0), (2, 3, 6))
        want = np.concatenate([self.X, beside], axis=-1) @ np.asarray(kernel)
        np.testing.assert_allclose(got, want, atol=1e-5)

    def test_learned_positions_are_rows_of_a_table_as_large_as_the_tokens(self):
        place = Learned(length=51).in_embedding(8, nnx.Rngs(0))
        (table,) = jax.tree.leaves(nnx.state(place))
        assert table.shape == (51, 8)
        assert np.std(table) * 8**0.5 == pytest.approx(1.0, abs=0.1)
        want = self.X + np.asarray(table)[self.AT] * 8**0.5
        np.testing.assert_allclose(place(self.X, jnp.array(self.AT)), want, atol=1e-6)

    def test_a_position_past_the_table_is_nan_and_padding_is_not(self):
        graphdef, params = nnx.split(Learned(length=50).in_embedding(8, nnx.Rngs(0)))

        def call(params, at):
            return nnx.merge(graphdef, params)(self.X, jnp.array([at]))

        got = call(params, [49, 50, -1])
        assert np.isfinite(got[:, [0, 2]]).all()
        assert np.isnan(got[:, 1]).all()
        (grad,) = jax.tree.leaves(jax.grad(lambda p: (call(p, [49, 3, -1]) ** 2).sum())(params))
        assert np.isfinite(grad).all()
        assert np.flatnonzero(np.any(grad, axis=1)).tolist() == [0, 3, 49]

    def test_a_model_refuses_inputs_longer_than_the_table(self):
        mixer = Attention(heads=2, position=Learned(length=5))
        model = Transformer(layers=1, model=8, hidden=8, mixer=mixer).build(7, jnp.float32, 0)
        assert jax.eval_shape(model, jnp.zeros((1, 5), jnp.int32))[0].shape == (1, 5, 7)
        with pytest.raises(ValueError, match="6 tokens, but the learned positions end after 5"):
            model(jnp.zeros((1, 6), jnp.int32))


SCALINGS = [s.scaling for s in RoPE.small()]
GOLDEN_ROPE = json.loads((GOLDEN / "rope.json").read_text())


class TestRoPE:
    """Rotations, and how they are scaled."""

    @pytest.mark.parametrize("scaling", SCALINGS, ids=str)
    def test_scores_are_functions_of_distance(self, scaling):
        place = RoPE(base=100.0, scaling=scaling).in_attention(1, 8, nnx.Rngs(0))
        q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))

        def score(i: int, j: int) -> float:
            at = jnp.array([[i]]), jnp.array([[j]])
            return float((place.rotate(q, at[0]) * place.rotate(k, at[1])).sum())

        assert score(7, 3) == pytest.approx(score(104, 100), abs=1e-4)
        assert abs(score(7, 3) - score(7, 4)) > 1e-3

    @pytest.mark.parametrize("scaling", SCALINGS, ids=str)
    def test_halves_are_rotated(self, scaling):
        place = RoPE(base=100.0, scaling=scaling).in_attention(1, 8, nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(0), (1, 1, 1, 8))
        angle = 5 * scaling.frequencies(100.0, 8)
        pairs = np.asarray(x[0, 0, 0, :4]) + 1j * np.asarray(x[0, 0, 0, 4:])
        want = scaling.magnitude * pairs * np.exp(1j * angle)
        got = place.rotate(x, jnp.array([[5]]))[0, 0, 0]
        np.testing.assert_allclose(got, np.concatenate([want.real, want.imag]), atol=1e-5)

    @pytest.mark.parametrize("scaling", SCALINGS, ids=str)
    def test_keys_rotated_early_are_those_rotated_late(self, scaling):
        """A cache holds keys from when the sequence was short."""
        place = RoPE(base=100.0, scaling=scaling).in_attention(1, 4, nnx.Rngs(0))
        x, at = jax.random.normal(jax.random.key(0), (1, 1, 60, 4)), jnp.arange(60)[None]
        early = place.rotate(x[:, :, :5], at[:, :5])
        np.testing.assert_array_equal(place.rotate(x, at)[:, :, :5], early)

    def test_phases_are_float32_for_bfloat16_inputs(self):
        place = RoPE().in_attention(1, 2, nnx.Rngs(0))
        x = jnp.ones((1, 1, 1, 2), jnp.bfloat16)
        got = place.rotate(x, jnp.array([[1001]])).astype(jnp.float32)[0, 0, 0]
        want = [np.cos(1001) - np.sin(1001), np.cos(1001) + np.sin(1001)]
        np.testing.assert_allclose(got, want, atol=1e-2)

    def test_values_are_not_rotated(self):
        """A single token sees its own value alone, wherever it stands."""
        layer = Attention(heads=2, position=RoPE()).build(8, jnp.float32, nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(0), (1, 1, 8))
        call = jax.jit(lambda position: layer(x, Places(position))[0])
        here, there = call(jnp.array([[0]])), call(jnp.array([[1000]]))
        np.testing.assert_allclose(here, there, atol=1e-6)

    @pytest.mark.parametrize("case", GOLDEN_ROPE, ids=lambda case: case["scaling"])
    def test_frequencies_are_the_golden_ones(self, case):
        scaling = getattr(rope_scaling, case["scaling"])(**case["fields"])
        found = scaling.frequencies(case["base"], case["dim"])
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, case["frequencies"], rtol=5e-7)
        assert scaling.magnitude == pytest.approx(case["magnitude"], rel=1e-12)

    def test_every_scaling_has_golden_values(self):
        known = set(members(rope_scaling.RopeScaling)) - {"NoScaling"}
        assert known == {case["scaling"] for case in GOLDEN_ROPE}

    @pytest.mark.parametrize(
        "scaling",
        [LinearScaling(1.0), NTK(1.0), DynamicNTK(9, 10, 3.0), Llama3(1.0), YaRN(1.0)],
        ids=str,
    )
    def test_a_factor_of_1_changes_nothing(self, scaling):
        plain = 10_000.0 ** (-np.arange(8) / 8)
        np.testing.assert_allclose(scaling.frequencies(10_000.0, 16), plain, rtol=1e-12)
        assert scaling.magnitude == 1.0

    def test_yarn_keeps_fast_pairs_and_divides_slow_ones_once(self):
        ratio = YaRN(factor=8.0, trained_length=512).frequencies(1e4, 32) / 1e4 ** (
            -np.arange(16) / 16
        )
        np.testing.assert_allclose(ratio[:2], 1.0)
        np.testing.assert_allclose(ratio[-4:], 1 / 8)
        assert (np.diff(ratio) <= 0).all()
        assert ((ratio > 1 / 8) & (ratio < 1)).any()

    @pytest.mark.parametrize(("length", "kept"), [(1, 0.25), (10**9, 1.0)])
    def test_yarn_is_plain_where_all_pairs_are_slow_or_fast(self, length, kept):
        found = YaRN(factor=4.0, trained_length=length).frequencies(100.0, 16)
        ratio = found / 100.0 ** (-np.arange(8) / 8)
        np.testing.assert_allclose(ratio[1:], kept)


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
        (lambda: Sinusoidal().in_embedding(9, nnx.Rngs(0)), "even model width, not 9"),
        (lambda: Sinusoidal(base=1.0), "base above 1, not 1.0"),
        (lambda: ConcatenatedSinusoidal(width=5), "positive even width, not 5"),
        (lambda: ConcatenatedSinusoidal(width=0), "positive even width, not 0"),
        (lambda: ConcatenatedSinusoidal(base=0.5), "base above 1, not 0.5"),
        (lambda: Learned(length=0), "length of at least 1, not 0"),
        (lambda: RoPE().in_attention(1, 7, nnx.Rngs(0)), "even head width, not 7"),
        (lambda: RoPE(base=1.0), "base above 1, not 1.0"),
        (lambda: RoPE(scaling=NTK()).in_attention(1, 2, nnx.Rngs(0)), "at least 4, not 2"),
        (lambda: LinearScaling(factor=0.5), "LinearScaling needs a factor of at least 1, not 0.5"),
        (lambda: NTK(factor=float("nan")), "NTK needs a factor of at least 1, not nan"),
        (lambda: DynamicNTK(trained_length=0), "trained_length of at least 1, not 0"),
        (lambda: DynamicNTK(factor=0.9), "factor of at least 1, not 0.9"),
        (lambda: Llama3(factor=0.9), "factor of at least 1, not 0.9"),
        (lambda: Llama3(low=4.0), "0 < low < high, not 4.0 and 4.0"),
        (lambda: YaRN(factor=0.0), "factor of at least 1, not 0.0"),
        (lambda: YaRN(beta_slow=0.0), "0 < beta_slow < beta_fast, not 0.0 and 32.0"),
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
