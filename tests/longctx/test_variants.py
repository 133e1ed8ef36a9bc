"""Variants by spelling: what is printed can be read, and nothing is evaluated."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from longctx.attention.layer import Attention
from longctx.attention.patterns import (
    Causal,
    Dilated,
    Full,
    Global,
    Intersection,
    Local,
    Pattern,
    Union,
)
from longctx.attention.positions import (
    ALiBi,
    NoPosition,
    Position,
    RelativeEmbedding,
    RoPE,
    Together,
)
from longctx.attention.positions.rope_scaling import YaRN
from longctx.mixer import MixerConfig
from longctx.variants import did_you_mean, members, parse, spell


class Fruit:
    """A family with a member in a field of a member, also where the field may hold none."""


@dataclass(frozen=True)
class Seed(Fruit):
    size: float = 1.0


@dataclass(frozen=True)
class Peach(Fruit):
    stone: Seed | None = None
    weight: int = 1


@dataclass(frozen=True)
class Basket(Fruit):
    fruits: tuple[Fruit, ...] = ()
    best: Fruit | int = 0
    names: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("text", "family", "variant"),
    [
        ("RoPE(base=500.0)", Position, RoPE(base=500.0)),
        ("RoPE", Position, RoPE()),
        (" RoPE( ) ", Position, RoPE()),
        ("RelativeEmbedding(32, beyond='zero')", Position, RelativeEmbedding(32, beyond="zero")),
        ("NoPosition", Position, NoPosition()),
        ("RoPE(scaling=YaRN(factor=4.0))", Position, RoPE(scaling=YaRN(factor=4.0))),
        ("Together((RoPE, ALiBi(True)))", Position, Together((RoPE(), ALiBi(True)))),
        ("Local(512)", Pattern, Local(512)),
        ("Causal()", Pattern, Causal()),
        ("Local(4) | Causal", Pattern, Union((Local(4), Causal()))),
        (
            "Local(size=256) | Global(4) & Causal()",
            Pattern,
            Union((Local(256), Intersection((Global(4), Causal())))),
        ),
        (
            "(Local(256) | Global(4)) & Causal",
            Pattern,
            Intersection((Union((Local(256), Global(4))), Causal())),
        ),
        ("Intersection((Causal, Global(2)))", Pattern, Intersection((Causal(), Global(2)))),
        ("Union(parts=(Full() & Local(2),))", Pattern, Union((Intersection((Full(), Local(2))),))),
        (
            "Attention(position=RoPE(), pattern=Local(8) | Dilated, heads=4)",
            MixerConfig,
            Attention(heads=4, position=RoPE(), pattern=Union((Local(8), Dilated()))),
        ),
        ("Attention(8, 2, None, RoPE)", MixerConfig, Attention(8, 2, None, RoPE())),
        ("Peach(stone=Seed(2.5))", Fruit, Peach(Seed(2.5))),
        ("Peach(None, 3)", Fruit, Peach(None, 3)),
        ("Basket((Peach(Seed), Seed()), 7)", Fruit, Basket((Peach(Seed()), Seed()), 7)),
        ("Basket(best=Basket(best=Seed))", Fruit, Basket(best=Basket(best=Seed()))),
        ("Basket(names=('Seed', 'x'))", Fruit, Basket(names=("Seed", "x"))),
    ],
)
def test_a_spelling_is_read(text, family, variant):
    assert parse(text, family) == variant


def test_every_variant_is_found_and_what_is_spelled_can_be_read():
    assert {"Causal", "Fixed", "Intersection", "Union"} <= set(members(Pattern))
    assert {"NoPosition", "RoPE"} <= set(members(Position))
    assert "Attention" in members(MixerConfig)
    for family in (Position, MixerConfig):
        for variant in (v for kind in members(family).values() for v in kind.small()):
            assert parse(spell(variant), family) == variant
    changed = RelativeEmbedding(max_distance=9, per_head=False, beyond="zero")
    assert spell(changed) == "RelativeEmbedding(max_distance=9, per_head=False, beyond='zero')"
    assert parse(spell(changed), Position) == changed


@pytest.mark.parametrize(
    ("variant", "family", "text"),
    [
        (Local(5, ahead=2), Pattern, "Local(size=5, ahead=2)"),
        (
            Local(5) | Global(2) & Causal(),
            Pattern,
            "Union(parts=(Local(size=5), Intersection(parts=(Global(tokens=2), Causal()))))",
        ),
        (Union((Local(),)), Pattern, "Union(parts=(Local(),))"),
        (Attention(pattern=Full()), MixerConfig, "Attention(pattern=Full())"),
        (Basket(names=("a",)), Fruit, "Basket(names=('a',))"),
        (Basket((Peach(Seed(0.5)),)), Fruit, "Basket(fruits=(Peach(stone=Seed(size=0.5)),))"),
    ],
)
def test_what_is_nested_is_spelled_and_read(variant, family, text):
    assert spell(variant) == text
    assert parse(text, family) == variant


@pytest.mark.parametrize("name", sorted(members(Pattern)))
def test_every_small_pattern_can_be_spelled_and_read(name):
    for pattern in members(Pattern)[name].small():
        assert parse(spell(pattern), Pattern) == pattern


NEW_FILE = """
from dataclasses import dataclass
from kernels.attention.spec import Pattern

@dataclass(frozen=True)
class Sieve(Pattern):
    holes: int = 3

    def allows(self, q_pos, k_pos):
        return (k_pos <= q_pos) & (k_pos % self.holes == 0)
"""
LOOK = """
import sys
from kernels.attention.spec import Pattern
from longctx import variants
if len(sys.argv) > 1:
    from longctx.attention import patterns
    patterns.__path__.append(sys.argv[1])
print(*variants.members(Pattern))
if len(sys.argv) > 1:
    print(variants.parse("Sieve(holes=2) & Local(4)", Pattern))
"""


def test_a_new_file_is_found_by_itself(tmp_path):
    """Nothing but variants is imported first; the second folder stands for the same package."""
    (tmp_path / "sieve.py").write_text(NEW_FILE)

    def look(*arguments: str) -> str:
        command = [sys.executable, "-c", LOOK, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    before, after = look(), look(str(tmp_path))
    assert {"Causal", "Fixed", "Intersection", "Union"} <= set(before.split())
    names, built = after.splitlines()
    assert set(names.split()) == {*before.split(), "Sieve"}
    assert built == "Intersection(parts=(Sieve(holes=2), Local(size=4, ahead=0)))"


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
        ("NoPosition(1)", Position, "can't build"),
        ("RoPE(base=1, **{})", Position, "literals|no field"),
        ("RoPE(base={[]: 1})", Position, "literals"),
        ("Local(size=0)", Pattern, "at least 1 token, not 0"),
        ("Local(size=2.5)", Pattern, "2.5 in .* is no int"),
        ("Local(size=True)", Pattern, "True in .* is no int"),
        ("Local(size=4, size=8)", Pattern, "size is given twice"),
        ("Local(4, size=8)", Pattern, "size is given twice"),
        ("ALiBi(two_sided='no')", Position, "'no' in .* is no bool"),
        ("RelativeEmbedding(beyond='Clip')", Position, "'Clip' in .* is no"),
        ("Local(size='x')", Pattern, "is no int"),
        ("Causal() & Lokal()", Pattern, "'Lokal' is no Pattern. Did you mean Local"),
        ("Causal() + Local()", Pattern, "can't read"),
        ("Causal() & 3", Pattern, "can't read"),
        ("RoPE() | RoPE()", Position, "can't build .* unsupported operand"),
        ("Union(parts=())", Pattern, r"Union needs a tuple of at least 1 pattern, not \(\)"),
        ("Union((Causal, 3))", Pattern, "3 in .* is no Pattern"),
        ("Union((Causal, RoPE))", Pattern, "'RoPE' is no Pattern"),
        ("Union((Local(siz=3),))", Pattern, "Local has no field 'siz'. Did you mean size"),
        ("Attention(pattern=RoPE())", MixerConfig, "'RoPE' is no Pattern"),
        ("Attention(position=3)", MixerConfig, "can't read"),
        ("Attention(heads=Local(3))", MixerConfig, "must be literals"),
        ("Peach(stone=Plum())", Fruit, "'Plum' is no Seed. Known: Seed"),
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
    with pytest.raises(ValueError, match="must be literals"):
        parse(f"Union((Causal(), {text}))", Pattern)
    with pytest.raises(ValueError, match=r"can't read|is no Pattern"):
        parse(f"Union(parts={text.removeprefix('Local(size=')}", Pattern)


def test_close_words_are_named_or_else_all():
    assert did_you_mean("demon", ["demo", "other"]) == "Did you mean demo?"
    assert did_you_mean("xyz", ["demo", "other"]) == "Known: demo, other."
    assert did_you_mean("xyz", []) == "Known: none."
