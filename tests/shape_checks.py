"""What `--typecheck` does to a function: hold it to the array shapes in its signature."""

import typing
from collections.abc import Callable

import beartype
from jaxtyping import AbstractArray


def holds_array(hint: object) -> bool:
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return True
    return any(holds_array(part) for part in typing.get_args(hint))


def check_shapes(function: Callable) -> Callable:
    """Let beartype check those annotations that are arrays; pyright checks the others.

    Not of constructors: jax rebuilds pytree dataclasses with placeholders for their arrays.
    """
    if function.__name__ == "__init__":
        return function
    annotations = function.__annotations__
    arrays = {name: hint for name, hint in annotations.items() if holds_array(hint)}
    if not arrays:
        return function
    function.__annotations__ = arrays
    try:
        return beartype.beartype(function)
    finally:
        function.__annotations__ = annotations
