"""Static costs for the terminal: whole programs, and the Pallas kernels in them."""

import re
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.table import Table

from eval.compiled.process import Record

PROGRAM = ("s", "GFLOP", "moved\nMB", "temp\nMB", "args\nMB", "out\nMB")
TPU = ("bun-\ndles", "tile", "MXU", "VALU", "XLU", "load", "store", "spill", "VMEM\nMB")
GPU = ("regs", "spill\nB", "shm\nkB", "thr.", "wgmma", "mma", "load", "store", "bar.")


def tables(records: Sequence[Record], platform: str) -> list[Table]:
    """Return a table of what was compiled and one of the kernels in it, where there are such."""
    done = [record for record in records if record["ok"]]
    with_kernels = [record for record in done if record["kernels"]]
    programs = [_program_table(done)] if done else []
    return programs + ([_kernel_table(with_kernels, platform)] if with_kernels else [])


def _program_table(records: Sequence[Record]) -> Table:
    """Return seconds to compile, XLA's count of operations, and bytes per device, of programs."""
    table = _table(PROGRAM, "moved: bytes accessed; neither it nor GFLOP knows kernels or loops")
    names = ("bytes_accessed", "temp_bytes", "argument_bytes", "output_bytes")
    for record in records:
        moved = (_scaled(record[name], 1e6) for name in names)
        seconds, operations = f"{record['seconds']:.1f}", _scaled(record["flops"], 1e9)
        table.add_row(record["case"], seconds, operations, *moved)
    return table


def _kernel_table(records: Sequence[Record], platform: str) -> Table:
    """Return the costs of the Pallas kernels in compiled programs, at most 80 columns wide."""
    if platform == "tpu":
        headings, row = TPU, _tpu_row
        caption = "tile: bundles of one full tile, and the slots that it fills, by unit"
    else:
        headings, row, caption = (
            GPU,
            _gpu_row,
            "regs: registers; shm: shared memory; from wgmma on: instructions in the PTX",
        )
    table = _table(headings, caption)
    for record in records:
        table.add_section()
        table.add_row(record["case"], style="bold")
        for kernel in record["kernels"]:
            name = re.sub(r"^(transpose_|jvp_)+|_*\.\d+$", "", kernel["kernel"])
            table.add_row(f" {name}", *row(kernel))
    return table


def _table(headings: Sequence[str], caption: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False, caption=caption)
    table.add_column("", overflow="ellipsis", no_wrap=True, max_width=28)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _tpu_row(kernel: dict[str, Any]) -> list[str]:
    tile = kernel["tile"] or {"bundles": 0, "slots": {}}
    slots = (tile["slots"].get(unit, 0) for unit in ("MXU", "VALU", "XLU", "VLOAD", "VSTORE"))
    spills = tile["slots"].get("VSTORE:SPILL", 0)
    numbers = (kernel["bundles"], tile["bundles"], *slots, spills)
    return [*map(str, numbers), _scaled(kernel["vmem_bytes"], 1e6)]


def _gpu_row(kernel: dict[str, Any]) -> list[str]:
    found = kernel["instructions"]
    words = ("wgmma.mma_async", "mma.sync", "ld.global", "st.global", "bar.sync")
    threads = " ".join(str(n) for n in kernel.get("threads", [])[:1])
    shared = _scaled(kernel.get("shared_bytes"), 1e3)
    counts = [str(found.get(word, 0)) for word in words]
    return [str(kernel["registers"]), str(kernel["spill_bytes"]), shared, threads, *counts]


def _scaled(value: float | None, unit: float) -> str:
    if value is None:
        return "?"
    scaled = value / unit
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:.3g}"
