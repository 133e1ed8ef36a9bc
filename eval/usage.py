"""CPU time, wall time and memory: what a piece of work used, and how busy the machine is."""

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

Result = dict[str, Any]


def cpu_seconds() -> float:
    """Return the user and system time that all threads of this process have used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes() -> int:
    """Return the most memory that this process has held at once."""
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux ru_maxrss begins with the peak of the parent; this line does not.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(step: Callable[[], object], steps: int = 5, warmup: int = 2) -> Result:
    """Run `step`, which returns when its work is done, and report the median after a warm-up."""
    if steps < 1:
        raise ValueError(f"steps={steps}, but at least one has to be measured")
    for _ in range(warmup):
        step()
    cpu, wall = [], []
    for _ in range(steps):
        cpu_start, wall_start = cpu_seconds(), time.perf_counter()
        step()
        wall.append(time.perf_counter() - wall_start)
        cpu.append(cpu_seconds() - cpu_start)
    return {
        "cpu_seconds": median(cpu),
        "wall_seconds": median(wall),
        "peak_bytes": peak_bytes(),
        "all_cpu_seconds": cpu,
        "all_wall_seconds": wall,
        "warmup": warmup,
    }


def busy_cores(seconds: float = 1.0) -> float:
    """Return how many cores the whole machine keeps busy, averaged over some seconds from now.

    Where there is no /proc/stat it is the load average of the last minute, which still holds what
    ran before.
    """
    before = _busy_ticks()
    if before is None:
        return os.getloadavg()[0]
    start = time.perf_counter()
    time.sleep(seconds)
    ticks = (_busy_ticks() or before) - before
    return ticks / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - start)


def _busy_ticks() -> int | None:
    """Return the ticks that all cores together have worked since the machine was started."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _wait, irq, soft, *_ = map(
        int, stat.read_text().splitlines()[0].split()[1:]
    )
    return user + nice + system + irq + soft
