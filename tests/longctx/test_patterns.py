"""Patterns against definitions read from the papers: pairs, windows, prefixes, tiles."""

from itertools import combinations_with_replacement, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention.spec import Tile
from longctx.attention.patterns import (
    Beyond,
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Intersection,
    Local,
    Pattern,
    Prefix,
    Recurrent,
    Strided,
    Union,
)
from longctx.variants import members

LENGTH = 40
MEMBERS = {n: c for n, c in members(Pattern).items() if c.__module__.startswith("longctx.")}
SMALL = [pattern for kind in MEMBERS.values() for pattern in kind.small()]
DEGENERATE = [
    *(Local(1), Local(1, ahead=1), Prefix(0), Prefix(1), Strided(1), Strided(2), Global(1)),
    *(Beyond(Local(1), 3), Beyond(Recurrent(4, 2), 5)),
    *(Recurrent(1, 0), Recurrent(5, 0), Recurrent(3, 40)),
    *(Dilated(1), Dilated(3, rate=1), Dilated(1, rate=1)),
    *(Fixed(1, 0), Fixed(1, 1), Fixed(4, 4), Fixed(4, 3), Fixed(3, 1)),
    *(Full() & Full(), Causal() | Full(), Union((Local(2),)), Intersection((Dilated(2),))),
]
every_pattern = pytest.mark.parametrize("pattern", SMALL, ids=str)


def prefix(pattern: Prefix, i: int) -> set[int]:
    return set(range(pattern.length if i < pattern.length else i + 1))


def local(pattern: Local, i: int) -> set[int]:
    back = {i - distance for distance in range(pattern.size)}
    return back | {i + 1 + step for step in range(pattern.ahead)}


def strided(pattern: Strided, i: int) -> set[int]:
    """Child et al. 2019, 4.3: A1 = {max(0, i - l), ..., i} and A2 = {j: (i - j) mod l = 0}."""
    first = set(range(max(0, i - pattern.stride), i + 1))
    return first | {j for j in range(i + 1) if (i - j) % pattern.stride == 0}


def fixed(pattern: Fixed, i: int) -> set[int]:
    """Child et al. 2019, 4.3: A1 = {j: j // l = i // l}, A2 = {j: j mod l in {l - c, ..., l}}."""
    block, columns = pattern.block, range(pattern.block - pattern.summary, pattern.block + 1)
    first = {j for j in range(i + 1) if j // block == i // block}
    return first | {j for j in range(i + 1) if j % block in columns}


def dilated(pattern: Dilated, i: int) -> set[int]:
    return {i - step * pattern.rate for step in range(pattern.size)}


def beyond(pattern: Beyond, i: int) -> set[int]:
    """What is left of the keys behind it, down to `size` beyond the local pattern's reach."""
    assert pattern.local.window is not None
    near = DEFINITIONS[type(pattern.local)](pattern.local, i)
    return {i - back for back in range(pattern.local.window + pattern.size)} - near


def recurrent(pattern: Recurrent, i: int) -> set[int]:
    """Dai et al. 2019, 3.2: the own segment so far and what is cached of those before it."""
    start = i // pattern.segment * pattern.segment
    return set(range(start - pattern.memory, i + 1))


def global_(pattern: Global, i: int) -> set[int]:
    return set(range(LENGTH if i < pattern.tokens else pattern.tokens))


def intersection(pattern: Intersection, i: int) -> set[int]:
    return set.intersection(*[seen(part, i) for part in pattern.parts])


def union(pattern: Union, i: int) -> set[int]:
    return set.union(*[seen(part, i) for part in pattern.parts])


DEFINITIONS = {
    Causal: lambda pattern, i: set(range(i + 1)),
    Full: lambda pattern, i: set(range(LENGTH)),
    Prefix: prefix,
    Local: local,
    Beyond: beyond,
    Recurrent: recurrent,
    Strided: strided,
    Fixed: fixed,
    Dilated: dilated,
    Global: global_,
    Intersection: intersection,
    Union: union,
}
"""The keys that query i sees by the paper."""


def seen(pattern: Pattern, i: int) -> set[int]:
    return DEFINITIONS[type(pattern)](pattern, i) & set(range(LENGTH))


def table(pattern: Pattern, length: int = LENGTH) -> np.ndarray:
    at = np.arange(length)
    return np.broadcast_to(pattern.allows(at[:, None], at[None, :]), (length, length))


singles = st.one_of(
    st.builds(Causal),
    st.builds(Full),
    st.builds(Prefix, st.integers(0, 12)),
    st.builds(Local, st.integers(1, 12), st.sampled_from([0, 0, 1, 4])),
    st.builds(Strided, st.integers(1, 9)),
    st.integers(1, 9).flatmap(lambda b: st.builds(Fixed, st.just(b), st.integers(0, b))),
    st.builds(Dilated, st.integers(1, 6), st.integers(1, 5)),
    st.builds(Global, st.integers(1, 6)),
)
patterns = st.recursive(
    singles,
    lambda parts: st.builds(
        lambda kind, some: kind(tuple(some)),
        st.sampled_from([Intersection, Union]),
        st.lists(parts, min_size=1, max_size=3),
    ),
    max_leaves=4,
)


def test_every_pattern_is_here():
    assert set(MEMBERS.values()) == set(DEFINITIONS)
    assert {type(pattern) for pattern in SMALL} == set(DEFINITIONS)


@settings(max_examples=100)
@given(pattern=patterns)
def test_pairs_are_those_of_the_definition(pattern):
    allowed = table(pattern)
    assert [set(np.flatnonzero(row)) for row in allowed] == [
        seen(pattern, i) for i in range(LENGTH)
    ]


@every_pattern
def test_jax_allows_what_numpy_allows(pattern):
    assert table(pattern).tolist() == [
        [j in seen(pattern, i) for j in range(40)] for i in range(40)
    ]
    at = jnp.arange(LENGTH)
    traced = jax.jit(lambda p, q, k: p.allows(q, k), static_argnums=0)
    np.testing.assert_array_equal(
        np.broadcast_to(traced(pattern, at[:, None], at[None, :]), (LENGTH, LENGTH)), table(pattern)
    )


def looked_at(allowed: np.ndarray) -> Tile:
    if allowed.all():
        return Tile.FULL
    return Tile.PARTIAL if allowed.any() else Tile.SKIP


@pytest.mark.parametrize("pattern", [*SMALL, *DEGENERATE], ids=str)
def test_every_small_tile_is_classified_exactly(pattern):
    """All tiles of the first 9 positions, and those that many positions later."""
    allowed = table(pattern)
    spans = list(combinations_with_replacement(range(9), 2))
    for shift, ((a, b), (c, d)) in product((0, 15), product(spans, spans)):
        tile = (a + shift, b + shift, c, d)
        want = looked_at(allowed[a + shift : b + shift + 1, c : d + 1])
        assert pattern.classify(*tile) is want, tile


@settings(max_examples=300)
@given(
    pattern=patterns,
    q_first=st.integers(0, 39),
    k_first=st.integers(0, 39),
    rows=st.integers(1, 16),
    columns=st.integers(1, 16),
)
def test_tiles_are_classified_exactly(pattern, q_first, k_first, rows, columns):
    allowed = table(pattern, 56)[q_first : q_first + rows, k_first : k_first + columns]
    tile = (q_first, q_first + rows - 1, k_first, k_first + columns - 1)
    assert pattern.classify(*tile) is looked_at(allowed)
    assert Pattern.classify(pattern, *tile) is looked_at(allowed)


@pytest.mark.parametrize(
    "pattern",
    [Strided(64), Fixed(64, 4), Dilated(32, 8), Global(4), Prefix(99), Local(64)],
    ids=str,
)
def test_a_single_pattern_never_looks_at_the_pairs(pattern, monkeypatch):
    """Else the map of a million tokens would take as long as its attention."""
    monkeypatch.setattr(type(pattern), "allows", None)
    tiles = [pattern.classify(900_000, 900_511, k, k + 511) for k in range(0, 1_000_000, 512)]
    assert Tile.SKIP in tiles


def farthest(allowed: np.ndarray) -> int:
    """Return how many keys back any query looks, itself included."""
    at = np.arange(len(allowed))
    return int((at[:, None] - at[None, :] + 1)[allowed].max(initial=0))


@every_pattern
def test_the_window_is_the_smallest_that_holds_every_key(pattern):
    wanted = farthest(table(pattern, 2 * LENGTH))
    if pattern.window is None:
        assert wanted > LENGTH
    else:
        assert wanted == pattern.window


@settings(max_examples=120)
@given(pattern=patterns)
def test_no_key_is_outside_the_window(pattern):
    allowed = table(pattern)
    assert pattern.window is None or farthest(allowed) <= pattern.window


@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_window_counts_the_query_itself(size):
    counts = table(Local(size)).sum(axis=1)
    assert counts.tolist() == [min(i + 1, size) for i in range(LENGTH)]
    assert table(Dilated(size, rate=4))[-1].sum() == size
    ahead = table(Local(size, ahead=3)).sum(axis=1)
    assert ahead[size : LENGTH - 3].tolist() == [size + 3] * (LENGTH - 3 - size)


def shift_invariant(allowed: np.ndarray) -> bool:
    return all(len(set(np.diagonal(allowed, d))) == 1 for d in range(1 - LENGTH, LENGTH))


@every_pattern
def test_relative_patterns_are_those_that_a_shift_leaves_alone(pattern):
    assert pattern.relative == shift_invariant(table(pattern))


@settings(max_examples=120)
@given(pattern=patterns)
def test_what_is_called_relative_is_invariant_to_shifts(pattern):
    assert not pattern.relative or shift_invariant(table(pattern))


@every_pattern
def test_the_prefix_is_what_sees_ahead(pattern):
    allowed = table(pattern)
    if pattern.prefix is None:
        for cut in range(1, LENGTH):
            assert allowed[:cut, cut:].any(), cut
    else:
        assert np.flatnonzero(np.triu(allowed, 1).any(axis=0)).max(initial=-1) + 1 == pattern.prefix


@settings(max_examples=120)
@given(pattern=patterns)
def test_nobody_sees_ahead_of_the_prefix(pattern):
    if pattern.prefix is not None:
        assert not np.triu(table(pattern), 1)[:, pattern.prefix :].any()


def test_combinations_take_what_their_parts_need():
    far, near, encoder = Dilated(3, rate=4), Local(5), Local(7, ahead=2)
    assert (far | near).window == 9
    assert (far & near & Causal()).window == 5
    assert (near | Global(2)).window is None
    assert (Causal() & Strided(4)).window is None
    assert (encoder & Causal()).prefix == 0
    assert (encoder | Causal()).prefix is None
    assert (Prefix(3) | Prefix(6) | near).prefix == 6
    assert (Prefix(3) & Prefix(6) & encoder).prefix == 3
    assert (far & near).relative
    assert not (near | Global(2)).relative


def test_operators_build_flat_combinations():
    a, b, c = Local(3), Global(2), Causal()
    assert a & b == Intersection((a, b))
    assert a | b == Union((a, b))
    assert a & b & c == a & (b & c) == Intersection((a, b, c))
    assert a | b | c == a | (b | c) == Union((a, b, c))
    assert a | b & c == Union((a, Intersection((b, c))))
    assert Union((Union((a,)), Union((b, c)))).parts == (a, b, c)


@every_pattern
def test_equal_patterns_compile_once(pattern):
    kind = type(pattern)
    twin = next(p for p in kind.small() if p == pattern)
    assert hash(twin) == hash(pattern)
    assert [other for other in SMALL if other == pattern] == [pattern]
    traces = []

    def count(p, q_pos):
        traces.append(p)
        return p.allows(q_pos, q_pos)

    counted = jax.jit(count, static_argnums=0)
    counted(pattern, jnp.arange(3))
    counted(twin, jnp.arange(3))
    assert len(traces) == 1


@every_pattern
def test_every_pattern_but_a_combination_names_its_paper(pattern):
    assert bool(pattern.paper) != isinstance(pattern, Intersection | Union)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: Local(0), "at least 1 token, not 0"),
        (lambda: Local(4, ahead=-1), "at least 0 tokens ahead, not -1"),
        (lambda: Prefix(-1), "at least 0 tokens, not -1"),
        (lambda: Strided(0), "at least 1 token, not 0"),
        (lambda: Fixed(0, 0), "block of at least 1 token, not 0"),
        (lambda: Fixed(4, 5), "0 to 4 tokens, its block, not 5"),
        (lambda: Fixed(4, -1), "0 to 4 tokens, its block, not -1"),
        (lambda: Dilated(0), "size of at least 1 token, not 0"),
        (lambda: Dilated(4, rate=0), "rate of at least 1 token, not 0"),
        (lambda: Global(0), "at least 1 token, not 0"),
        (lambda: Union(()), r"Union needs a tuple of at least 1 pattern, not \(\)"),
        (lambda: Intersection(()), "Intersection needs a tuple"),
        (lambda: Union((Causal(), 3)), "at least 1 pattern, not .*3"),
        (lambda: Causal() & 3, "Intersection needs a tuple"),
        (lambda: Union(Causal()), r"not Causal\(\)"),
    ],
)
def test_bad_fields_say_what_is_wrong(build, reason):
    with pytest.raises(ValueError, match=reason):
        build()
