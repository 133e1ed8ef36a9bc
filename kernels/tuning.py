"""Block sizes of the kernels, measured by `scripts.tune`; without them a kernel has its own rule.

The table beside this file holds, by device kind and by what `entry_name` returns, `[rows, columns]`
or null: nothing was faster than the kernel's rule of thumb.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from kernels.platform import device_kind

TABLE = Path(__file__).with_name("tuning.json")
CANDIDATES: dict[str, dict[str, tuple[tuple[int, int], ...]]] = {
    "pallas_tpu": {"both": ((128, 128), (256, 256), (512, 512), (1024, 1024))},
    "pallas_gpu": {
        "forward": (
            *((16, 32), (32, 32), (64, 32), (64, 64)),
            *((64, 128), (128, 32), (128, 64), (128, 128)),
        ),
        "backward": (
            *((16, 16), (16, 32), (32, 32), (32, 64)),
            *((64, 32), (64, 64), (64, 128), (128, 64)),
        ),
    },
}
"""What the tuner tries, as (rows, columns), for each way of each kernel.

A way is a pass, or "both" where one size serves both. The sizes of "backward" hold for all of its
kernels.
"""

_forced: ContextVar[tuple["Blocks | None", str] | None] = ContextVar("forced", default=None)


class Blocks(NamedTuple):
    """The size of a tile."""

    rows: int
    """Queries."""
    columns: int
    """Keys."""


def measured(
    kernel: str, head_dim: int, dtype: DTypeLike, length: int, *, term: bool, way: str
) -> Blocks | None:
    """Return the sizes that the tuner forces or the table holds; None: go by the rule of thumb.

    Ask outside of what is jitted and hand the answer in as a static argument: a trace that was kept
    does not ask again.

    Args:
        kernel: "pallas_tpu" or "pallas_gpu".
        length: how many keys there are; the table goes by the next power of two.
        term: whether a term with a table is added to the scores.
        way: one of the kernel's ways in `CANDIDATES`.

    Raises:
        ValueError: no kernel has this name and this way.
    """
    if way not in CANDIDATES.get(kernel, ()):
        known = ", ".join(f"{name} {way}" for name, ways in CANDIDATES.items() for way in ways)
        raise ValueError(f"{kernel!r} {way!r} is not tuned; known are {known}")
    forced = _forced.get()
    if forced is not None and forced[1] == way:
        return forced[0]
    name = entry_name(kernel, head_dim, dtype, length, term=term, way=way)
    return load(TABLE).get(device_kind(), {}).get(name)


@contextmanager
def forcing(blocks: Blocks | None, *, way: str) -> Iterator[None]:
    """Give every kernel traced in the block these sizes, or its rule of thumb: for the tuner."""
    token = _forced.set((blocks, way))
    try:
        yield
    finally:
        _forced.reset(token)


def time_candidates(
    kernel: str, call: Callable[..., Any], inputs: Sequence, repeats: int, *, way: str
) -> Iterator[tuple[Blocks | None, float | Exception]]:
    """Yield each candidate's seconds, or why it failed: what does not fit the chip may raise.

    The first is None, the kernel's rule of thumb. `call(*inputs)` is compiled anew for each, with
    its sizes forced.
    """
    for blocks in (None, *(Blocks(*sizes) for sizes in CANDIDATES[kernel][way])):
        jax.clear_caches()  # a trace that was kept inside would not ask for its sizes again
        try:
            with forcing(blocks, way=way):
                result = seconds(jax.jit(lambda *inputs: call(*inputs)), inputs, repeats)
        except Exception as error:  # each compiler has a type of its own
            result = error
        yield blocks, result


def seconds(function: Callable[..., Any], inputs: Sequence, repeats: int) -> float:
    """Return the time of the fastest call, after one that compiles."""
    jax.block_until_ready(function(*inputs))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*inputs))
        times.append(time.perf_counter() - start)
    return min(times)


def entry_name(
    kernel: str, head_dim: int, dtype: DTypeLike, length: int, *, term: bool, way: str
) -> str:
    """Return what the table calls a case, e.g. "pallas_gpu backward, dim 64, bfloat16, 4096"."""
    bucket = 1 << max(0, length - 1).bit_length()
    name = f"{kernel} {way}, dim {head_dim}, {jnp.dtype(dtype).name}, {bucket}"
    return f"{name}, term" if term else name


@lru_cache(maxsize=8)
def load(path: Path) -> dict[str, dict[str, Blocks | None]]:
    """Return a table of block sizes by device kind and name; empty if the file is absent.

    Raises:
        ValueError: the file is no such table.
    """
    try:
        table = json.loads(path.read_text()) if path.exists() else {}
        return {
            kind: {
                name: None if sizes is None else Blocks(*map(int, sizes))
                for name, sizes in entries.items()
            }
            for kind, entries in table.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no table of block sizes ({error}): it should map device kinds to "
            "names to [rows, columns] or null; delete it to start a new one"
        ) from error


def save(path: Path, device_kind: str, entries: Mapping[str, Blocks | None]) -> None:
    """Add entries to a table, over older ones of the same name, in one step.

    Raises:
        ValueError: the file holds something else.
    """
    load.cache_clear()
    table = dict(load(path))
    table[device_kind] = {**table.get(device_kind, {}), **entries}
    lines = json.dumps(table, indent=1, sort_keys=True) + "\n"
    new = path.with_name(f"{path.name}.new")
    new.write_text(lines)
    os.replace(new, path)
    load.cache_clear()
