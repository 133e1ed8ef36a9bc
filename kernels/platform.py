"""The kind of device that a program is built for, which need not be one that is here."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax

_target: ContextVar[tuple[str, str] | None] = ContextVar("target", default=None)


def platform() -> str:
    """Return "cpu", "gpu" or "tpu": what `building_for` names, or else JAX's default backend."""
    target = _target.get()
    return target[0] if target else jax.default_backend()


def device_kind() -> str:
    """Return JAX's name of the device, e.g. "TPU v6 lite" or "NVIDIA H200"."""
    target = _target.get()
    return target[1] if target else jax.devices()[0].device_kind


@contextmanager
def building_for(name: str, kind: str) -> Iterator[None]:
    """Choose kernels for this platform and kind of device inside the block, while tracing.

    JAX does not know of the choice: a function that was jitted and called before keeps what it was
    traced with. Lower to the same platform, in a process of its own for each.
    """
    token = _target.set((name, kind))
    try:
        yield
    finally:
        _target.reset(token)
