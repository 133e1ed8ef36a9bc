"""The recorded static costs of kernels, and what differs from them.

They stand in `eval/static_costs.json` with the versions of the compilers that gave them, and are
recorded anew by

    python -m scripts.compile --target NAME ... --record [--cases WORD ...]

which replaces the compiled cases, and drops a target's others if they came from other versions.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from eval.compiled.cases import AttentionCase, Case, PeerCase
from eval.compiled.process import Record, versions

FILE = Path(__file__).parents[1] / "static_costs.json"
TOLERANCE = 0.1
COSTS = ("bundles", "tile", "spills", "vmem_bytes", "registers", "spill_bytes", "shared_bytes")
"""What is kept of a kernel's record, where it has it."""

FAST: dict[str, tuple[Case, ...]] = {
    "tpu-v6e": (
        PeerCase("splash", "forward", 128, 4096),
        AttentionCase("forward", "plain", 128, 4096),
        AttentionCase("forward", "relative", 128, 4096),
    ),
    "h200": (
        PeerCase("mha", "forward", 128, 4096),
        AttentionCase("forward", "plain", 64, 4096),
        AttentionCase("forward", "relative", 64, 4096),
    ),
}
"""What every run of the tests compiles."""


def costs(record: Record) -> dict[str, dict[str, int]]:
    """Return the costs of a compiled case: of the whole program, and of each kernel."""
    kept = {"program": {"temp_bytes": record["temp_bytes"]}}
    for kernel in record["kernels"]:
        found = {name: _number(kernel[name]) for name in COSTS if kernel.get(name) is not None}
        kept[kernel["kernel"]] = found
    return kept


def _number(cost: Any) -> int:
    return cost["bundles"] if isinstance(cost, dict) else cost


def recorded(target: str, file: Path = FILE) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the versions that a target's costs came from, and its costs by case."""
    entry = json.loads(file.read_text()).get(target, {}) if file.exists() else {}
    return entry.get("versions", {}), entry.get("cases", {})


def record_all(records: Iterable[Record], file: Path = FILE) -> None:
    """Write the costs of compiled cases into the file, beside what it holds of the same versions.

    Raises:
        ValueError: a case was not compiled, so has no costs.
    """
    entries = json.loads(file.read_text()) if file.exists() else {}
    for record in records:
        if not record["ok"]:
            raise ValueError(
                f"{record['case']} has no costs on {record['target']}: {record['reason']}; leave "
                "it out with --cases, or mend it"
            )
        entry = entries.get(record["target"], {})
        if entry.get("versions") != versions(record["target"]):
            entry = {"versions": versions(record["target"]), "cases": {}}
        entry["cases"] = dict(sorted((entry["cases"] | {record["case"]: costs(record)}).items()))
        entries[record["target"]] = entry
    file.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")


def differences(ours: dict[str, dict[str, int]], before: dict[str, dict[str, int]]) -> list[str]:
    """Return a sentence for each cost that differs from what was recorded by over `TOLERANCE`."""
    found = []
    for kernel in sorted(ours.keys() | before.keys()):
        if kernel not in ours or kernel not in before:
            found.append(f"{kernel} is {'new' if kernel in ours else 'gone'}")
            continue
        now, then = ours[kernel], before[kernel]
        for cost in sorted(now.keys() | then.keys()):
            a, b = now.get(cost, 0), then.get(cost, 0)
            if abs(a - b) > TOLERANCE * b:
                found.append(f"{kernel}: {cost} {a}, recorded {b}")
    return found
