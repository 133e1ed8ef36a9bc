"""The kind of device that a program is built for, which need not be one that is here."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_target: ContextVar[str | None] = ContextVar("target", default=None)


def platform() -> str:
    """Return "cpu", "gpu" or "tpu": what `building_for` names, or else JAX's default backend."""
    return _target.get() or jax.default_backend()


@contextmanager
def building_for(name: str) -> Iterator[None]:
    """Choose kernels for this platform inside the block, while tracing.

    JAX does not know of the choice: a function that was jitted and called before keeps what it was
    traced with. Lower to the same platform, in a process of its own for each.
    """
    token = _target.set(name)
    try:
        yield
    finally:
        _target.reset(token)
