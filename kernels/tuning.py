"""Block sizes of the kernels: measured where somebody has run `scripts.tune`, else a rule of thumb.

The table beside this file holds `[rows, columns]` by device kind and by what `entry_name` returns.
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

from kernels.platform import platform

TABLE = Path(__file__).with_name("tuning.json")
CANDIDATES = {
    "pallas_tpu": ((128, 128), (256, 256), (512, 512), (1024, 1024)),
    "pallas_gpu": ((32, 32), (64, 32), (64, 64), (64, 128), (128, 32), (128, 64), (128, 128)),
}
"""What the tuner tries, as (rows, columns), for each kernel."""

_forced: ContextVar[tuple["Blocks", bool] | None] = ContextVar("forced", default=None)


class Blocks(NamedTuple):
    """The size of a tile."""

    rows: int
    """Queries."""
    columns: int
    """Keys."""


def block_sizes(
    kernel: str,
    head_dim: int,
    dtype: DTypeLike,
    length: int,
    *,
    term: bool,
    backward: bool = False,
    device_kind: str | None = None,
) -> Blocks:
    """Return the block sizes to use; a kernel cuts them to its lengths itself.

    Ask outside of what is jitted and hand the answer in as a static argument: a trace that was kept
    does not ask again.

    Args:
        kernel: "pallas_tpu" or "pallas_gpu".
        length: how many keys there are; the table goes by the next power of two.
        term: whether a term with a table is added to the scores.
        device_kind: as JAX calls it; None is the device here, if the program is built for it.

    Raises:
        ValueError: no kernel has this name.
    """
    if kernel not in CANDIDATES:
        raise ValueError(f"kernel is {kernel!r}; known are {', '.join(CANDIDATES)}")
    forced = _forced.get()
    if forced is not None and forced[1] == backward:
        return forced[0]
    if device_kind is None and platform() == jax.default_backend():
        device_kind = jax.devices()[0].device_kind
    name = entry_name(kernel, head_dim, dtype, length, term=term, backward=backward)
    measured = load(TABLE).get(device_kind or "", {}).get(name)
    return measured or _usual(kernel, head_dim, dtype, term)


def _usual(kernel: str, head_dim: int, dtype: DTypeLike, term: bool) -> Blocks:
    if kernel == "pallas_tpu":
        size = 256 if term and jnp.dtype(dtype).itemsize > 2 else 512
        return Blocks(size, size)
    return Blocks(128 if head_dim <= 64 else 64, 64)


@contextmanager
def forcing(blocks: Blocks, *, backward: bool = False) -> Iterator[None]:
    """Give every kernel traced in the block these sizes, forward or backward: for the tuner."""
    token = _forced.set((blocks, backward))
    try:
        yield
    finally:
        _forced.reset(token)


def time_candidates(
    kernel: str, call: Callable[..., Any], inputs: Sequence, repeats: int, *, backward: bool
) -> Iterator[tuple[Blocks, float | Exception]]:
    """Yield each candidate's seconds, or why it failed: what does not fit the chip may raise.

    `call(*inputs)` is compiled anew for each, with its sizes forced.
    """
    for blocks in (Blocks(*sizes) for sizes in CANDIDATES[kernel]):
        jax.clear_caches()  # a trace that was kept inside would not ask for its sizes again
        try:
            with forcing(blocks, backward=backward):
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
    kernel: str, head_dim: int, dtype: DTypeLike, length: int, *, term: bool, backward: bool
) -> str:
    """Return what the table calls a case, e.g. "pallas_gpu backward, dim 64, bfloat16, 4096"."""
    way = "backward" if backward else "forward"
    bucket = 1 << max(0, length - 1).bit_length()
    name = f"{kernel} {way}, dim {head_dim}, {jnp.dtype(dtype).name}, {bucket}"
    return f"{name}, term" if term else name


@lru_cache(maxsize=8)
def load(path: Path) -> dict[str, dict[str, Blocks]]:
    """Return a table of block sizes by device kind and name; empty if the file is absent.

    Raises:
        ValueError: the file is no such table.
    """
    try:
        table = json.loads(path.read_text()) if path.exists() else {}
        return {
            kind: {name: Blocks(*map(int, sizes)) for name, sizes in entries.items()}
            for kind, entries in table.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} holds no table of block sizes ({error}): it should map device kinds to "
            "names to [rows, columns]; delete it to start a new one"
        ) from error


def save(path: Path, device_kind: str, entries: Mapping[str, Blocks]) -> None:
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
