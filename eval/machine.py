"""What the numbers of a benchmark depend on: the machine, by its parts, and the code's commit."""

import os
import platform
import subprocess
from pathlib import Path


def machine() -> str:
    """Return the CPU's model, its cores and the memory, without the name of the host."""
    text = f"{_cpu_model()}, {os.cpu_count()} cores"
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        size = 0
    memory = f", {size / 1e9:.0f} GB of memory" if size > 0 else ""
    return f"{text}{memory}, {platform.system()}"


def commit() -> str:
    """Return the git commit of this code, with `-dirty` if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            command, cwd=here, capture_output=True, text=True, check=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()


def _cpu_model() -> str:
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        for line in cpus.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
