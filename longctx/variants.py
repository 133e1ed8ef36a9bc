"""Families of variants: each member is a frozen dataclass in a file of its own.

On the command line and in messages a variant is spelled like the call that makes it,
`RelativeEmbedding(max_distance=256)`, or with operators, `Local(256) | Global(4) & Causal()`;
`parse` reads that without evaluating anything.
"""

import ast
import dataclasses
import difflib
import importlib
import operator
import pkgutil
from itertools import chain, repeat
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

Family = TypeVar("Family")

HOMES = {
    "MixerConfig": ["longctx.attention.layer", "longctx.mixers"],
    "Pattern": ["longctx.attention.patterns"],
    "Position": ["longctx.attention.positions"],
    "RopeScaling": ["longctx.attention.positions.rope_scaling"],
}
"""The packages (all their modules) and modules that hold a family's members, by its name."""

MOST_TIMES = 1000
"""How often a tuple may be repeated."""

OPERATORS = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_}


def members(family: type) -> dict[str, type]:
    """Return the concrete classes of a family by name: all of its homes, and others so far."""
    for name in HOMES.get(family.__name__, []):
        home = importlib.import_module(name)
        for module in pkgutil.iter_modules(getattr(home, "__path__", []), f"{name}."):
            importlib.import_module(module.name)
    found: dict[str, type] = {}
    for child in family.__subclasses__():
        found |= members(child)
        if not getattr(child, "__abstractmethods__", None):
            found[child.__name__] = child
    return found


def spell(variant: Any) -> str:
    """Return the text that `parse` reads: the fields that differ from their defaults."""
    fields = [
        f"{field.name}={_spell_value(getattr(variant, field.name))}"
        for field in dataclasses.fields(variant)
        if getattr(variant, field.name) != field.default
    ]
    return f"{type(variant).__name__}({', '.join(fields)})"


def _spell_value(value: Any) -> str:
    if isinstance(value, tuple):
        items = [_spell_value(item) for item in value]
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    return spell(value) if dataclasses.is_dataclass(value) else repr(value)


def parse(text: str, family: type[Family]) -> Family:
    """Return the variant that `text` spells, e.g. `Local(size=512)` or `Causal`.

    Where a field's type names a family, its value may be a variant, e.g. `Attention(pattern=Full)`.

    Raises:
        ValueError: no such variant or field, or a value that is neither literal nor variant.
    """
    return _variant(_tree(text), text, [family])


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"can't read {text!r}; write it like Name(field=value)") from None


def parse_value(text: str, hint: Any) -> Any:
    """Return what `text` spells for a field of type `hint`, e.g. `(Causal,) * 2 + (Local(8),)`.

    Raises:
        ValueError: as `parse`.
    """
    families = tuple(_families(hint))
    value = _value(_tree(text), hint, text)
    kinds = [get_origin(part) for part in (hint, *get_args(hint))]
    if isinstance(value, tuple) and tuple not in kinds:
        raise ValueError(f"{text!r} is several, but the field holds one {hint.__name__}")
    for item in value if isinstance(value, tuple) else (value,):
        if not isinstance(item, families):
            wanted = " or ".join(family.__name__ for family in families)
            raise ValueError(f"{item!r} in {text!r} is no {wanted}")
    return value


def _variant(tree: ast.expr, text: str, families: list[type]) -> Any:
    if isinstance(tree, ast.BinOp) and type(tree.op) in OPERATORS:
        sides = [_variant(side, text, families) for side in (tree.left, tree.right)]
        return _build(OPERATORS[type(tree.op)], sides, {}, text)
    call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
    if not isinstance(call.func, ast.Name):
        raise ValueError(f"can't read {text!r}; write it like Name(field=value)")
    known = {name: kind for family in families for name, kind in _choices(family).items()}
    name = call.func.id
    if name not in known:
        wanted = " or ".join(family.__name__ for family in families)
        raise ValueError(f"{name!r} is no {wanted}. {did_you_mean(name, sorted(known))}")
    hints = get_type_hints(known[name])
    fields = [field.name for field in dataclasses.fields(known[name])]
    unknown = {str(word.arg) for word in call.keywords} - set(fields)
    if unknown:
        given = sorted(unknown)[0]
        raise ValueError(f"{name} has no field {given!r}. {did_you_mean(given, sorted(fields))}")
    given = fields[: len(call.args)] + [str(word.arg) for word in call.keywords]
    for field in given:
        if given.count(field) > 1:
            raise ValueError(f"{field} is given twice in {text!r}")
    positional = chain((hints[field] for field in fields), repeat(None))
    args = [_value(*pair, text) for pair in zip(call.args, positional, strict=False)]
    named = {str(w.arg): _value(w.value, hints[str(w.arg)], text) for w in call.keywords}
    return _build(known[name], args, named, text)


def _build(kind: Any, args: list, fields: dict[str, Any], text: str) -> Any:
    try:
        return kind(*args, **fields)
    except TypeError as error:
        raise ValueError(f"can't build {text!r}: {error}") from None


def _value(tree: ast.expr, hint: Any, text: str) -> Any:
    """Return what `tree` spells for a field whose type is `hint`."""
    families = _families(hint)
    if families and isinstance(tree, ast.Tuple):
        return tuple(_value(item, hint, text) for item in tree.elts)
    if families and isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add | ast.Mult):
        return _joined(tree, hint, text)
    if hint in families or (families and isinstance(tree, ast.Call | ast.Name | ast.BinOp)):
        return _variant(tree, text, families)
    try:
        value = ast.literal_eval(tree)
    except (ValueError, TypeError):
        raise ValueError(f"the values in {text!r} must be literals") from None
    if not _fits(value, hint):
        wanted = " or ".join(family.__name__ for family in families)
        raise ValueError(f"{value!r} in {text!r} is no {wanted or getattr(hint, '__name__', hint)}")
    return value


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a literal is of a field's type, as far as fields of variants go."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple)
    if get_args(hint):
        return any(_fits(value, part) for part in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    return hint is None or hint is Any or type(value) is hint


def _joined(tree: ast.BinOp, hint: Any, text: str) -> tuple:
    """Return the tuple that a sum of tuples, or a tuple times a number, spells."""
    left = _value(tree.left, hint, text)
    if isinstance(left, tuple) and isinstance(tree.op, ast.Add):
        right = _value(tree.right, hint, text)
        if isinstance(right, tuple):
            return left + right
    elif isinstance(left, tuple):
        times = getattr(tree.right, "value", None)
        if type(times) is int and 0 < times <= MOST_TIMES:
            return left * times
    raise ValueError(f"can't read {text!r}; write it like (Name(field=value),) * 4 + (Name,)")


def _families(hint: Any) -> list[type]:
    """Return the classes in a type that have variants: Pattern of `tuple[Pattern, ...]`."""
    if isinstance(hint, type):
        return [hint] if _choices(hint) else []
    return [family for part in get_args(hint) for family in _families(part)]


def _choices(family: type) -> dict[str, type]:
    """Return the dataclasses that a value of this type may be, by name."""
    found = members(family)
    if not getattr(family, "__abstractmethods__", None):
        found[family.__name__] = family
    return {name: kind for name, kind in found.items() if dataclasses.is_dataclass(kind)}


def did_you_mean(given: str, known: list[str]) -> str:
    """Return a sentence that names the closest known words, or all of them."""
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Known: {', '.join(known) or 'none'}."
