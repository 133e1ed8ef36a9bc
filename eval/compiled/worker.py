"""The process that compiles: it reads cases as JSON and writes a line of JSON for each.

`eval.compiled.process` starts it, with the environment that it needs.
"""

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from eval.compiled import llo, ptx
from eval.compiled.cases import Case
from kernels.platform import building_for
from kernels.targets import TARGETS, Target
from longctx.serialise import from_json

KERNELS = {"tpu": llo.kernels, "gpu": ptx.kernels}
FLAGS = {"tpu": ("LIBTPU_INIT_ARGS", llo.FLAGS), "gpu": ("XLA_FLAGS", ptx.FLAGS)}
"""The variable, by platform, that makes the compiler write into a folder, and its value."""


@dataclass(frozen=True)
class Request:
    """What to compile, and for what."""

    target: str
    folder: str
    """Where the compiler writes."""
    cases: tuple[Any, ...]


def compile_case(target: Target, device: Any, case: Case, folder: Path) -> dict[str, Any]:
    """Return the static costs of a case on one device; `ok` is False if it is refused."""
    for path in folder.iterdir():
        path.unlink()
    start = time.perf_counter()
    try:
        with building_for(target.platform, device.device_kind), target.tracing():
            program = case.build()
            shapes = jax.tree.map(lambda x: _placed(x, device), program.shapes)
            lowered = program.function.trace(*shapes).lower(lowering_platforms=(_backend(target),))
            compiled = lowered.compile()
    except Exception as error:
        return {"ok": False, "reason": _reason(error)}
    seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    return {
        "ok": True,
        "seconds": seconds,
        **_operations(lowered, compiled),
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "kernels": KERNELS[target.platform](folder),
    }


def _placed(x: jax.ShapeDtypeStruct, device: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(device))


def _backend(target: Target) -> str:
    return "tpu" if target.platform == "tpu" else "cuda"


def _operations(lowered: Any, compiled: Any) -> dict[str, float | None]:
    """Return operations and bytes by XLA's count, which knows nothing of kernels or loops."""
    costs: dict[str, float] = {}
    for stage in (compiled, lowered):
        with suppress(Exception):
            costs = costs or stage.cost_analysis() or {}
    named = {"flops": costs.get("flops"), "bytes_accessed": costs.get("bytes accessed")}
    return {name: value if value and value > 0 else None for name, value in named.items()}


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_reason, error.exceptions))
    return f"{type(error).__name__}: {error}"


def main() -> None:
    request = from_json(sys.stdin.read())
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # compilers print as well
    target = TARGETS[request.target]
    try:
        device, unknown = target.describe().devices[0], None
    except NotImplementedError as error:
        device, unknown = None, {"ok": False, "reason": _reason(error)}
    for case in request.cases:
        result = unknown or compile_case(target, device, case, Path(request.folder))
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
