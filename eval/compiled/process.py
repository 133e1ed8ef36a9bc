"""Compiling for one target, in a process of its own: compilers may end it, or never end."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from eval.compiled.cases import Case
from eval.compiled.ptx import find_ptxas, ptxas_version
from eval.compiled.worker import FLAGS, Request
from kernels.targets import ENVIRONMENT, TARGETS
from longctx.serialise import to_json

ROOT = Path(__file__).parents[2]
Record = dict[str, Any]


def compile_for(target: str, cases: Sequence[Case], patience: float = 900) -> Iterator[Record]:
    """Yield each case's record, in order, as it is compiled.

    A record holds `target`, `case` and `ok`. If not `ok`, also the `reason`: the case is refused,
    the compiler died of it, or it took more than `patience` seconds. If `ok`, the `seconds`, bytes
    per device (`temp_bytes`, `argument_bytes`, `output_bytes`), XLA's `flops` and `bytes_accessed`
    (None where it can't tell), and the Pallas `kernels`; see `llo.kernels` and `ptx.kernels`.

    Raises:
        ValueError: there is no such target.
        ModuleNotFoundError: its compiler is not installed.
    """
    if target not in TARGETS:
        raise ValueError(f"there is no target {target!r}; there are {', '.join(TARGETS)}")
    TARGETS[target].require()
    if TARGETS[target].platform == "gpu":
        find_ptxas()
    left = list(cases)
    while left:
        for answer in _answers(target, left, patience):
            yield {"target": target, "case": left.pop(0).name} | answer


def _answers(target: str, cases: list[Case], patience: float) -> Iterator[Record]:
    """Yield one answer per case, until all have one or a case has ended the process."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        variable, flags = FLAGS[TARGETS[target].platform]
        changes = {variable: flags.format(folder=folder), "JAX_ENABLE_COMPILATION_CACHE": "false"}
        process = subprocess.Popen(
            [sys.executable, "-m", "eval.compiled.worker"],
            cwd=ROOT, env=os.environ | ENVIRONMENT | changes, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert process.stdin is not None
        with process:
            try:
                with suppress(BrokenPipeError):
                    process.stdin.write(to_json(Request(target, folder, tuple(cases))))
                    process.stdin.close()
                for _ in cases:
                    start = time.monotonic()
                    line = _line(process, patience)
                    if not line.endswith("\n"):
                        late = time.monotonic() - start > patience
                        reason = f"no answer in {patience:.0f} s" if late else ""
                        yield {"ok": False, "reason": reason or _death(process, errors)}
                        return
                    yield json.loads(line)
            finally:
                process.kill()


def _line(process: subprocess.Popen[str], patience: float) -> str:
    """Return the next line of the process, which is killed if it takes too long."""
    assert process.stdout is not None
    watch = threading.Timer(patience, process.kill)
    watch.start()
    try:
        return process.stdout.readline()
    finally:
        watch.cancel()


def _death(process: subprocess.Popen[str], errors: IO[str]) -> str:
    status = process.wait()
    errors.seek(0)
    last = [line.strip() for line in errors if line.strip()][-3:]
    return f"the compiler ended with status {status}: {' | '.join(last)}"


def versions(target: str) -> dict[str, str]:
    """Return the installed versions that a target's static costs depend on."""
    names = ("jax", "jaxlib", *TARGETS[target].packages)
    found = {name: importlib.metadata.version(name) for name in names}
    if TARGETS[target].platform == "gpu":
        found["ptxas"] = ptxas_version(find_ptxas())
    return found
