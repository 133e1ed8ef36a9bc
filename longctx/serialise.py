"""Configs as JSON and back: frozen dataclasses of plain values, each with its class's name."""

import dataclasses
import hashlib
import importlib
import json
from typing import Any

CLASS = "class"


def to_json(config: Any) -> str:
    """Return the JSON text of a config, readable and with a stable order."""
    return json.dumps(_plain(config), indent=2) + "\n"


def from_json(text: str) -> Any:
    """Return the config that `to_json` wrote.

    Only dataclasses are built; nothing is unpickled or evaluated.

    Raises:
        ValueError: the text is damaged, or names a class or field that is not there (any more).
    """
    try:
        plain = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the config is not JSON: {error}") from None
    return _config(plain)


def config_hash(config: Any) -> str:
    """Return 16 hex digits that change whenever a field changes."""
    return hashlib.sha256(to_json(config).encode()).hexdigest()[:16]


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Return a line `field: ours, not theirs` for each field in which two configs differ."""
    same_class = dataclasses.is_dataclass(ours) and type(ours) is type(theirs)
    if same_class and not isinstance(ours, type):
        lines = []
        for field in dataclasses.fields(ours):
            name = f"{path}.{field.name}" if path else field.name
            lines += differences(getattr(ours, field.name), getattr(theirs, field.name), name)
        return lines
    if isinstance(ours, tuple) and isinstance(theirs, tuple) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [line for n, pair in pairs for line in differences(*pair, f"{path}[{n}]")]
    return [] if ours == theirs else [f"{path}: {ours!r}, not {theirs!r}"]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = f"{type(value).__module__}:{type(value).__qualname__}"
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {CLASS: name, **fields}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a config can't hold {value!r} of type {type(value).__name__}")


def _config(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_config(item) for item in value)
    if not isinstance(value, dict):
        return value
    fields = {name: _config(item) for name, item in value.items() if name != CLASS}
    name = str(value.get(CLASS))
    module, _, qualname = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), qualname)
    except (ImportError, AttributeError, TypeError, ValueError):
        raise ValueError(f"the config names the class {name!r}, which can't be found") from None
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise ValueError(f"the config names {name!r}, which is no config class")
    try:
        return found(**fields)
    except TypeError as error:
        raise ValueError(f"the config of {name} does not fit this version: {error}") from None
