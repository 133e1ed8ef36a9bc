"""Static costs of GPU kernels, read from the PTX and the HLO that XLA writes, and from ptxas."""

import importlib.util
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernels.targets import INSTALL

FLAGS = "--xla_dump_to={folder} --xla_dump_emitter_re=ptx"
"""XLA_FLAGS for these files."""
INSTRUCTIONS = ("wgmma.mma_async", "mma.sync", "ld.global", "st.global", "cp.async", "bar.sync")
"""What is counted in the PTX: how often it stands there, not how often it runs."""

_PALLAS = re.compile(r'name = "([^"]+)", num_stages')  # how the HLO writes a Triton kernel
_ENTRY = re.compile(r"\.entry (\w+)\(")
_ARCH = re.compile(r"^\.target (\w+)", re.MULTILINE)
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_THUNK = re.compile(r"\] (\S+) grid: \[(.+?)\] threads: \[(.+?)\] +shared_memory: (\d+) bytes")


def find_ptxas() -> Path:
    """Return NVIDIA's assembler, from its wheel.

    Raises:
        ModuleNotFoundError: the wheel is not installed.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*/bin/ptxas")):
            return path
    raise ModuleNotFoundError(f"registers are counted by ptxas of nvidia-cuda-nvcc: {INSTALL}")


def ptxas_version(ptxas: Path) -> str:
    """Return the version of an assembler, like 13.5.37."""
    done = subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.partition(", V")[2].split()[0]


def kernels(folder: Path) -> list[dict[str, Any]]:
    """Return a record of each Pallas kernel whose compilation was dumped into a folder."""
    pallas, launches, ptxas = _pallas_names(folder), _launches(folder), find_ptxas()
    found = []
    for path in sorted(folder.glob("*.ptx")):
        text = path.read_text()
        for name in _ENTRY.findall(text):
            if re.sub(r"_\d+$", "", name) in pallas or name in pallas:
                counts = assembled(_assemble(ptxas, path, _ARCH.findall(text)[0]), name)
                found.append({"kernel": name, **counts, **launches.get(name, {}), **_count(text)})
    return found


def _pallas_names(folder: Path) -> set[str]:
    files = folder.glob("*_gpu_after_optimizations.txt")
    return {name for path in files for name in _PALLAS.findall(path.read_text())}


def _launches(folder: Path) -> dict[str, dict[str, Any]]:
    files = folder.glob("*.thunk_sequence.txt")
    return {name: launch for path in files for name, launch in launches(path.read_text())}


def launches(thunks: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each launched kernel's name, grid, threads and bytes of shared memory."""
    for name, grid, threads, shared in _THUNK.findall(thunks):
        sizes = {"grid": _numbers(grid), "threads": _numbers(threads)}
        yield name, sizes | {"shared_bytes": int(shared)}


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def _assemble(ptxas: Path, ptx: Path, architecture: str) -> str:
    command = [ptxas, "-v", "-arch", architecture, ptx, "-o", "/dev/null"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"ptxas refuses {ptx.name}: {done.stderr.strip()}")
    return done.stdout + done.stderr


def assembled(report: str, kernel: str) -> dict[str, int]:
    """Return a kernel's registers and spilled bytes, from what `ptxas -v` prints."""
    part = report.partition(f"entry function '{kernel}'")[2].partition("Compiling entry")[0]
    stored, loaded = map(int, _SPILLS.findall(part)[0])
    registers = int(re.findall(r"Used (\d+) registers", part)[0])
    return {"registers": registers, "spill_bytes": stored + loaded}


def _count(ptx: str) -> dict[str, dict[str, int]]:
    return {"instructions": {word: ptx.count(word) for word in INSTRUCTIONS if word in ptx}}
