"""Families of variants: each member is a frozen dataclass in a file of its own.

On the command line and in messages a variant is spelled like the call that makes it,
`RelativeEmbedding(max_distance=256)`; `parse` reads that without evaluating anything.
"""

import ast
import dataclasses
import difflib
from typing import Any, TypeVar

Family = TypeVar("Family")


def members(family: type) -> dict[str, type]:
    """Return the concrete classes of a family that are defined so far, by name."""
    found: dict[str, type] = {}
    for child in family.__subclasses__():
        found |= members(child)
        if not getattr(child, "__abstractmethods__", None):
            found[child.__name__] = child
    return found


def spell(variant: Any) -> str:
    """Return the text that `parse` reads: the fields that differ from their defaults."""
    fields = [
        f"{field.name}={getattr(variant, field.name)!r}"
        for field in dataclasses.fields(variant)
        if getattr(variant, field.name) != field.default
    ]
    return f"{type(variant).__name__}({', '.join(fields)})"


def parse(text: str, family: type[Family]) -> Family:
    """Return the variant that `text` spells, e.g. `Local(size=512)` or `Causal`.

    Raises:
        ValueError: no such variant or field, or a value that is not a literal.
    """
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"can't read {text!r}; write it like Name(field=value)") from None
    return _build(tree, text, family)


def _build(tree: ast.expr, text: str, family: type) -> Any:
    call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
    if not isinstance(call.func, ast.Name):
        raise ValueError(f"can't read {text!r}; write it like Name(field=value)")
    known = members(family)
    name = call.func.id
    if name not in known:
        raise ValueError(f"{name!r} is no {family.__name__}. {did_you_mean(name, sorted(known))}")
    try:
        args = [ast.literal_eval(value) for value in call.args]
        fields = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (ValueError, TypeError):
        raise ValueError(f"the values in {text!r} must be literals") from None
    unknown = set(fields) - set(known[name].__dataclass_fields__)
    if unknown:
        given, right = sorted(unknown)[0], sorted(known[name].__dataclass_fields__)
        raise ValueError(f"{name} has no field {given!r}. {did_you_mean(given, right)}")
    try:
        return known[name](*args, **fields)
    except TypeError as error:
        raise ValueError(f"can't build {text!r}: {error}") from None


def did_you_mean(given: str, known: list[str]) -> str:
    """Return a sentence that names the closest known words, or all of them."""
    close = difflib.get_close_matches(given, known, n=3, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    return f"Known: {', '.join(known) or 'none'}."
