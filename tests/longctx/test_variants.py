"""Variants by spelling: what is printed can be read, and nothing is evaluated."""

import pytest

from longctx.attention.patterns import Causal, Local, Pattern
from longctx.attention.positions import NoPosition, Position, RelativeEmbedding, RoPE
from longctx.variants import did_you_mean, members, parse, spell


@pytest.mark.parametrize(
    ("text", "family", "variant"),
    [
        ("RoPE(base=500.0)", Position, RoPE(base=500.0)),
        ("RoPE", Position, RoPE()),
        (" RoPE( ) ", Position, RoPE()),
        ("RelativeEmbedding(32, beyond='zero')", Position, RelativeEmbedding(32, beyond="zero")),
        ("NoPosition", Position, NoPosition()),
        ("Local(512)", Pattern, Local(512)),
        ("Causal()", Pattern, Causal()),
    ],
)
def test_a_spelling_is_read(text, family, variant):
    assert parse(text, family) == variant


def test_every_variant_is_found_and_what_is_spelled_can_be_read():
    for family in (Position, Pattern):
        known = members(family)
        assert known
        for name, kind in known.items():
            assert spell(kind()) == f"{name}()"
            assert parse(name, family) == kind()
    changed = RelativeEmbedding(max_distance=9, per_head=False, beyond="zero")
    assert spell(changed) == "RelativeEmbedding(max_distance=9, per_head=False, beyond='zero')"
    assert parse(spell(changed), Position) == changed


@pytest.mark.parametrize(
    ("text", "family", "reason"),
    [
        ("Rope", Position, "'Rope' is no Position. Did you mean RoPE"),
        ("RoPE", Pattern, "'RoPE' is no Pattern"),
        ("Lokal(size=4)", Pattern, "Did you mean Local"),
        ("RoPE(bas=3)", Position, "RoPE has no field 'bas'. Did you mean base"),
        ("RoPE(", Position, r"can't read 'RoPE\('; write it like Name\(field=value\)"),
        ("", Position, "can't read ''"),
        ("a.b()", Position, "can't read"),
        ("3", Position, "can't read"),
        ("RoPE(1, 2)", Position, "can't build"),
        ("RoPE(base=1, **{})", Position, "literals|no field"),
        ("RoPE(base={[]: 1})", Position, "literals"),
        ("Local(size=0)", Pattern, "at least 1 token, not 0"),
        ("Local(size='x')", Pattern, "can't build"),
    ],
)
def test_a_bad_spelling_says_what_is_wrong(text, family, reason):
    with pytest.raises(ValueError, match=reason):
        parse(text, family)


@pytest.mark.parametrize(
    "text",
    ["Local(size=__import__('os').getpid())", "Local(size=int('3'))", "Local(size=[].pop())"],
)
def test_nothing_is_evaluated(text):
    with pytest.raises(ValueError, match="must be literals"):
        parse(text, Pattern)


def test_close_words_are_named_or_else_all():
    assert did_you_mean("demon", ["demo", "other"]) == "Did you mean demo?"
    assert did_you_mean("xyz", ["demo", "other"]) == "Known: demo, other."
    assert did_you_mean("xyz", []) == "Known: none."
