"""Static costs of TPU kernels, read from what libtpu's compiler writes of its last stage.

A bundle is what a TensorCore issues in one cycle, if nothing stalls. The compiler writes each
kernel's bundles as text, and beside them how many slots of each unit every bundle fills.
"""

import re
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

BUNDLES = "-final_bundles.txt"
SCHEDULE = "-schedule-analysis_final_bundles.txt"
SLOTS = "-final_hlo-static-per-bundle-utilization.txt"
ALLOCATIONS = "-pre-finalize-registers-and-allocations.txt"
FLAGS = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=final.*"
)
"""LIBTPU_INIT_ARGS for these files; with all passes, or a debug level, compiling takes minutes."""
DELAY = 6
"""At most so many bundles after a branch are still issued."""

_BUNDLE = re.compile(r"^ *(?:0x)?[0-9a-f]+ +([A-Z]{2})?: *(>*) *\{(\})?", re.MULTILINE)
_BRANCH = re.compile(r"\bsbr\.")
_VMEM = re.compile(r"^ *#allocation\d+ \[.*?space=vmem, size = 0x([0-9a-f]+)", re.MULTILINE)
_WHOLE = "TLP"  # the program that calls the kernels, so its file names them too
_ENDS = (BUNDLES, SLOTS, ALLOCATIONS)


@dataclass(frozen=True)
class Block:
    """Bundles that run one after the other: no branch leads in or out between them."""

    first: int
    """Its place in the program."""
    bundles: int
    loops: int
    """How many loops it lies in; the grid of a kernel is one."""
    slots: dict[str, int]
    """Filled slots by unit."""

    @property
    def matrix(self) -> int:
        """The filled slots of the matrix unit."""
        return self.slots["MXU"]


def blocks(bundles: str, slots: str) -> list[Block]:
    """Return a program's blocks, from the texts of its bundles and of their slots.

    A block begins where the compiler marks a target of branches and after a branch. The bundles
    issued in a branch's shadow belong to the block that follows, whose work they hold; after the
    branch that closes a loop, to the loop.

    Raises:
        ValueError: the two texts do not describe the same number of bundles.
    """
    starts = list(_BUNDLE.finditer(bundles))
    units, rows = _slots(slots)
    if len(starts) != len(rows):
        raise ValueError(f"{len(starts)} bundles, but slots of {len(rows)}: not of one program")
    loops = _depths(starts)
    ends = [*(start.start() for start in starts[1:]), len(bundles)]
    branches = {
        i for i, start in enumerate(starts) if _BRANCH.search(bundles, start.end(), ends[i])
    }
    marked = {i for i, start in enumerate(starts) if start[1]}
    left = {i for i in range(1, len(loops)) if loops[i] < loops[i - 1]}
    cuts = {0} | marked | left
    for branch in branches:
        after = range(branch + 1, min(branch + DELAY + 2, len(starts)))
        event = next((i for i in after if i in branches | marked | left), None)
        if after and event not in left:
            cuts.add(branch + 1)
    found = []
    for first, end in pairwise([*sorted(cuts), len(starts)]):
        sums = map(sum, zip(*rows[first:end], strict=True))
        filled = dict(zip(units, sums, strict=True))
        found.append(Block(first, end - first, loops[first], filled))
    return found


def _depths(starts: list[re.Match[str]]) -> list[int]:
    """Return each bundle's loops; an empty one, which is written without, has its predecessor's."""
    depths = [0]
    for start in starts:
        depths.append(depths[-1] if start[3] else len(start[2]))
    return depths[1:]


def _slots(text: str) -> tuple[list[str], list[list[int]]]:
    lines = text.splitlines()
    names = next(line for line in lines if line.startswith("MXU,"))
    first = next(i for i, line in enumerate(lines) if "UTILIZATION" in line) + 1
    rows = [[int(word) for word in line.split()] for line in lines[first:] if line.strip()]
    return [name.strip() for name in names.split(",")], rows


def vmem_bytes(allocations: str) -> int:
    """Return the bytes of vector memory that a kernel reserves, windows and scratch together."""
    return sum(int(size, 16) for size in _VMEM.findall(allocations))


def tile(found: list[Block]) -> Block | None:
    """Return the block of one full tile; None if nothing uses the matrix unit.

    It is the shortest of those that fill about as many slots of the matrix unit as any block does:
    the tile that needs no mask. "About" because copies of a tile differ by some slots.
    """
    most = max((block.matrix for block in found), default=0)
    full = [block for block in found if block.matrix and block.matrix >= 0.9 * most]
    return min(full, key=lambda block: block.bundles, default=None)


def kernels(folder: Path) -> list[dict[str, Any]]:
    """Return a record of each Pallas kernel whose compilation was dumped into a folder."""
    found = []
    for schedule in sorted(folder.glob(f"*{SCHEDULE}")):
        text = schedule.read_text()
        if 'custom_call_target="tpu_custom_call"' not in text:
            continue
        stem = re.sub(r"\d+$", "", schedule.name.removesuffix(SCHEDULE))
        name = stem.partition("-")[2].rstrip("-")
        if name == _WHOLE:
            continue
        found.append(_record(name, *(_read(folder, stem, end) for end in _ENDS)))
    return found


def _read(folder: Path, stem: str, end: str) -> str:
    fits = re.compile(re.escape(stem) + r"\d+" + re.escape(end))
    (path,) = (path for path in folder.iterdir() if fits.fullmatch(path.name))
    return path.read_text()


def _record(name: str, bundles: str, slots: str, allocations: str) -> dict[str, Any]:
    program = blocks(bundles, slots)
    best = tile(program)
    return {
        "kernel": name,
        "bundles": sum(block.bundles for block in program),
        "loop_bundles": sum(block.bundles for block in program if block.loops),
        "spills": sum(block.slots.get("VSTORE:SPILL", 0) for block in program),
        "vmem_bytes": vmem_bytes(allocations),
        "tile": asdict(best) if best else None,
        "matrix_blocks": [asdict(block) for block in program if block.matrix],
    }
