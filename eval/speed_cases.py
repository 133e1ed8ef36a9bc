"""Our own cases of `eval.speed`, and which case of a peer each of them is compared with."""

from collections.abc import Callable
from functools import partial
from typing import Any

from eval.usage import Result


def training(length: int, batch: int, **choice: Any) -> Result:
    """Measure training steps of our model; see `eval.speed_longctx`."""
    from eval.speed_longctx import training

    return training(length, batch, **choice)


def generation(length: int, batch: int, **choice: Any) -> Result:
    """Measure the sampling of whole sequences by our model; see `eval.speed_longctx`."""
    from eval.speed_longctx import generation

    return generation(length, batch, **choice)


def lookup(keys: int) -> Result:
    """Measure the search of a memory; see `eval.speed_longctx`."""
    from eval.speed_longctx import lookup

    return lookup(keys)


TRAINING: dict[str, dict[str, Any]] = {
    "train": {},
    "train-bfloat16": {"dtype": "bfloat16"},
    "train-no-position": {"position": "none"},
    "train-no-position-bfloat16": {"position": "none", "dtype": "bfloat16"},
    "train-rope": {"position": "rope"},
    "train-remat": {"remat": True},
}
MECHANISMS = ("full", "local", "routing", "lsh", "memory")
LONG = ((1024, 4), *((length, 1) for length in (4096, 8192, 16384, 32768, 65536)))
"""Lengths and batches at which the mechanisms are compared; past 4096, only if they are named."""
GENERATION: dict[str, dict[str, str]] = {
    "generate": {},
    "generate-no-position": {"position": "none"},
}
OURS: dict[str, Callable[[], Result]] = (
    {
        f"longctx/{work}/{length}x{batch}": partial(function, length, batch, **choice)
        for works, function, sizes in (
            (TRAINING, training, ((1024, 4), (4096, 1))),
            (GENERATION, generation, ((512, 1), (512, 8))),
        )
        for work, choice in works.items()
        for length, batch in sizes
    }
    | {
        f"longctx/train-{name}/{length}x{batch}": partial(
            training, length, batch, mechanism=name, remat=True, steps=2 if length > 4096 else 5
        )
        for name in MECHANISMS
        for length, batch in LONG
    }
    | {f"longctx/lookup/{keys}": partial(lookup, keys) for keys in (65536, 262144, 1048576)}
)

WITH_TERM, WITHOUT = "torch_music_transformer", "torch_gpt"
PEERS = {
    "train": f"{WITH_TERM}/train",
    "train-bfloat16": f"{WITH_TERM}/train-bfloat16",
    "train-no-position": f"{WITHOUT}/train",
    "train-no-position-bfloat16": f"{WITHOUT}/train-bfloat16",
    "train-rope": f"{WITHOUT}/train",
    "train-remat": f"{WITH_TERM}/train",
    "generate": f"{WITH_TERM}/generate",
    "generate-no-position": f"{WITHOUT}/generate",
}
"""The peer that does the same work in the same precision: with the relative term, or without."""

SLOW = (
    f"{WITH_TERM}/generate/",
    "longctx/lookup/",
    *(f"longctx/train-{name}/" for name in MECHANISMS),
)
"""How the names of cases that take minutes begin."""


def peer_of(case: str) -> str | None:
    """Return the case that one of ours is compared with; None for a peer, or what has none."""
    framework, work, size = case.split("/")
    mechanism = work.removeprefix("train-")
    if framework != "longctx" or work == "lookup" or mechanism == "full":
        return None
    return f"longctx/train-full/{size}" if mechanism in MECHANISMS else f"{PEERS[work]}/{size}"
