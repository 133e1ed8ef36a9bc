"""The choice of who serves a call: a named implementation, or the first that can."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def serve(
    implementations: Mapping[str, Callable[..., Any]],
    preferred: Sequence[str],
    name: str | None,
    *args: Any,
) -> Any:
    """Return what the named implementation gives for these arguments, or the first that can.

    Raises:
        ValueError: the name is unknown.
        NotImplementedError: the named implementation cannot serve this call; the text says why.
        ExceptionGroup: none of the preferred can; it holds every reason.
    """
    if name is not None:
        if name not in implementations:
            raise ValueError(f"implementation is {name!r}; known are {', '.join(implementations)}")
        return implementations[name](*args)
    reasons = []
    for candidate in preferred:
        try:
            return implementations[candidate](*args)
        except NotImplementedError as reason:
            reasons.append(reason)
    raise ExceptionGroup("no implementation serves this call", reasons)
