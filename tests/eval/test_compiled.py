"""Compiling for accelerators that are not here: what compilers write is read, and costs are kept.

What needs the compilers of the `aot` extra is skipped where they are not installed.
"""

import io
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from rich.console import Console

from configs.catalogue import load_config
from eval.compiled import llo, ptx
from eval.compiled.cases import (
    DIMS,
    LENGTHS,
    AttentionCase,
    Case,
    Direction,
    GenerateCase,
    Program,
    TrainCase,
    kernel_cases,
)
from eval.compiled.process import compile_for, versions
from eval.compiled.static_costs import FAST, costs, differences, record_all, recorded
from eval.compiled.table import tables
from kernels.targets import TARGETS
from scripts.compile import main

BUNDLES = """\
= control target key start
LB: loop body
= control target key end

     0   :  { %s1_s0 = smov 0 }
   0x1 LB: > { %p0 = scmp.ge.s32.totalorder %s1_s0, 8  ;;  %v1 = vld [vmem:[%s2] sm:$0xff] }
   0x2   : > { %9 = sbr.rel (%p0) target = $region8  ;;  %s3 = sadd.s32 1, %s1_s0 }
   0x3   : > { %v2 = vmatmul.bf16.gmra.mxu0 %v1 (!%p0) }
   0x4   :  {}
   0x5   : > { %v3 = vpop.f32.mrf.mxu0 /* window bounds: (8, 8)
second_minor_factor: 1 */  ;;  %14 = vst [vmem:[#allocation9_spill]] %v3 } /* Start region 7 */
   0x6 PF: > { %11 = sbr.rel (!%p0) target = $region3 }
   0x7   :  {}
   0x8   :  { %12 = vsyncpa [#allocation3], 1 }
"""
SLOTS = """\
== CAPACTIY:
MXU, XLU, VALU, VSTORE, VSTORE:SPILL, SALU
    4     3     4     1     1     2
== UTILIZATION:
0 0 0 0 0 1
0 0 0 0 0 1
0 0 0 0 0 2
1 0 2 0 0 0
0 0 0 0 0 0
1 0 3 1 1 0
0 0 0 0 0 1
0 0 0 0 0 0
0 0 0 0 0 0
"""
ALLOCATIONS = """\
  #allocation0 [shape = 'u32[]', space=smem, size = 0x4, offset = 0x4, fixed_abs, tag = 'index']
  #allocation1 [shape = 'u32[72,128]{1,0}', space=vmem, size = 0x9000, scoped, tag = 'scratch']
    #allocation2 [shape = 'u8[65536]{0}', space=vmem, size = 0x10000, scoped, tag = 'window']
    %7 = vld [#allocation2]
"""
PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'forward' for 'sm_90a'
ptxas info    : Function properties for forward
    96 bytes stack frame, 92 bytes spill stores, 100 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 96 bytes cumulative stack size
ptxas info    : Compiling entry function 'forward_1' for 'sm_90a'
ptxas info    : Function properties for forward_1
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 34 registers, used 1 barriers
"""
THUNKS = """\
001: kCustomKernel [source       | next=002 (1)] forward grid: [32, 1, 8] threads: [128, 1, 1]  \
shared_memory: 81920 bytes
002: kCustomKernel [prev=001 (1) | sink        ] add_fusion grid: [16, 1, 1] threads: [128, 1, 1] \
 shared_memory: 0 bytes
"""
SCHEDULE = '%forward.1 = bf16[8] custom-call(%q), custom_call_target="tpu_custom_call"'


def dump(folder: Path, kernel: str, bundles: str = BUNDLES, schedule: str = SCHEDULE) -> None:
    """Write a kernel's files as libtpu names them."""
    parts = {llo.ALLOCATIONS: ALLOCATIONS, llo.SLOTS: SLOTS, llo.SCHEDULE: schedule}
    for number, (end, text) in enumerate((parts | {llo.BUNDLES: bundles}).items()):
        (folder / f"1796003735122640908-{kernel}-0{number}{end}").write_text(text)


def test_a_program_is_cut_into_blocks_at_branches_and_their_targets():
    found = llo.blocks(BUNDLES, SLOTS)
    assert [(block.first, block.bundles, block.loops) for block in found] == [
        (0, 1, 0), (1, 2, 1), (3, 3, 1), (6, 2, 1), (8, 1, 0),
    ]  # fmt: skip
    tile = llo.tile(found)
    assert tile is not None
    assert tile is found[2]
    assert tile.slots == {
        "MXU": 2, "XLU": 0, "VALU": 5, "VSTORE": 1, "VSTORE:SPILL": 1, "SALU": 0,
    }  # fmt: skip


def test_bundles_and_slots_of_two_programs_are_not_taken_for_one():
    with pytest.raises(ValueError, match="9 bundles, but slots of 8"):
        llo.blocks(BUNDLES, SLOTS.removesuffix("0 0 0 0 0 0\n"))


def test_the_tile_is_the_block_of_most_matrix_work_in_fewest_bundles():
    def block(first: int, bundles: int, matrix: int) -> llo.Block:
        return llo.Block(first, bundles, 1, {"MXU": matrix})

    masked, full, small, rest = (
        block(0, 90, 66),
        block(90, 70, 64),
        block(160, 9, 8),
        block(9, 9, 0),
    )
    assert llo.tile([masked, full, small, rest]) is full
    assert llo.tile([rest]) is None


def test_a_dump_gives_pallas_kernels_only(tmp_path: Path):
    dump(tmp_path, "forward.1")
    dump(tmp_path, "fusion.2", schedule="%fusion.2 = bf16[8] fusion(%q)")
    dump(tmp_path, "TLP")
    (kernel,) = llo.kernels(tmp_path)
    assert kernel["kernel"] == "forward.1"
    assert (kernel["bundles"], kernel["loop_bundles"], kernel["spills"]) == (9, 7, 1)
    assert kernel["vmem_bytes"] == 0x19000
    assert kernel["tile"]["bundles"] == 3
    assert kernel["matrix_blocks"] == [kernel["tile"]]


def test_registers_and_spills_are_those_of_the_kernel():
    assert ptx.assembled(PTXAS, "forward") == {"registers": 255, "spill_bytes": 192}
    assert ptx.assembled(PTXAS, "forward_1") == {"registers": 34, "spill_bytes": 0}


def test_launches_tell_shared_memory():
    launch = {"grid": [32, 1, 8], "threads": [128, 1, 1], "shared_bytes": 81920}
    assert dict(ptx.launches(THUNKS))["forward"] == launch


TPU_KERNEL = {
    "kernel": "transpose_jvp_attention_backward__.1", "bundles": 15000, "spills": 5000,
    "vmem_bytes": 16_100_000, "tile": {"bundles": 10000, "slots": {"MXU": 10000, "VALU": 10000}},
}  # fmt: skip
GPU_KERNEL = {
    "kernel": "attention_backward_of_a_long_name", "registers": 255, "spill_bytes": 10000,
    "shared_bytes": 232448, "threads": [1024, 1, 1], "instructions": {"mma.sync": 10000},
}  # fmt: skip


def record(kernel: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "target": "tpu-v6e", "case": "backward/relative/128/131072", "ok": True, "seconds": 123.4,
        "flops": None, "bytes_accessed": 2e12, "temp_bytes": 1e10, "argument_bytes": 1e10,
        "output_bytes": 1e10, "kernels": [kernel],
    } | more  # fmt: skip


@pytest.mark.parametrize(("platform", "kernel"), [("tpu", TPU_KERNEL), ("gpu", GPU_KERNEL)])
def test_tables_fit_the_terminal(platform: str, kernel: dict[str, Any]):
    refused = {"target": "h200", "case": "forward/t5/64/4096", "ok": False, "reason": "no"}
    text = io.StringIO()
    console = Console(file=text, width=200)
    for table in tables([record(kernel), refused], platform):
        console.print(table)
    assert max(map(len, text.getvalue().splitlines())) <= 80
    assert "10000" in text.getvalue()
    assert text.getvalue().count("backward/relative/128/131072") == 2


def test_what_is_refused_has_no_table():
    refused = {"target": "h200", "case": "forward/t5/64/4096", "ok": False, "reason": "no"}
    assert tables([refused], "gpu") == []


def test_costs_may_move_by_a_tenth():
    before = {"program": {"temp_bytes": 1000}, "forward": {"bundles": 500, "spills": 0}}
    assert differences({**before, "forward": {"bundles": 549, "spills": 0}}, before) == []
    changed = {"forward": {"bundles": 440, "spills": 1}, "backward": {"bundles": 1}}
    assert differences(changed, before) == [
        "backward is new",
        "forward: bundles 440, recorded 500",
        "forward: spills 1, recorded 0",
        "program is gone",
    ]


@pytest.fixture
def require() -> Any:
    """Return a function that skips the test where a target's compiler is not installed."""

    def check(target: str) -> None:
        try:
            TARGETS[target].require()
            if TARGETS[target].platform == "gpu":
                ptx.find_ptxas()
        except ModuleNotFoundError as reason:
            pytest.skip(str(reason))

    return check


def test_costs_are_recorded_beside_others_of_the_same_versions(require, tmp_path: Path):
    require("tpu-v6e")
    file, first = tmp_path / "costs.json", record(TPU_KERNEL)
    record_all([first, record(TPU_KERNEL, case="forward/plain/64/4096")], file)
    record_all([record(TPU_KERNEL | {"bundles": 1})], file)
    assert recorded("tpu-v6e", file) == (
        versions("tpu-v6e"),
        {
            "backward/relative/128/131072": costs(record(TPU_KERNEL | {"bundles": 1})),
            "forward/plain/64/4096": costs(first),
        },
    )
    entries = json.loads(file.read_text())
    entries["tpu-v6e"]["versions"]["jax"] = "0.0"
    file.write_text(json.dumps(entries))
    record_all([first], file)
    assert recorded("tpu-v6e", file)[1] == {"backward/relative/128/131072": costs(first)}


def test_a_refused_case_is_not_recorded(tmp_path: Path):
    refused = {"target": "h200", "case": "forward/t5/64/4096", "ok": False, "reason": "too big"}
    with pytest.raises(ValueError, match="forward/t5/64/4096 has no costs on h200: too big"):
        record_all([refused], tmp_path / "costs.json")


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="no target 'tpu-v9'; there are tpu-v4"):
        next(compile_for("tpu-v9", []))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--target", "tpu-v9"], "there is no target 'tpu-v9'; there are tpu-v4"),
        (["--target", "h200", "--cases", "nothing"], "no case contains .*forward/plain/64/4096"),
        (["--target", "h200", "--what", "train", "--config", "no"], "there is no config 'no'"),
    ],
)
def test_the_program_says_what_there_is(arguments: list[str], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        main(arguments)


@dataclass(frozen=True)
class Refused(Case):
    @property
    def name(self):
        return "refused"

    def build(self):
        raise NotImplementedError("there is no such kernel")


@dataclass(frozen=True)
class Deadly(Case):
    @property
    def name(self):
        return "deadly"

    def build(self):
        os._exit(3)


@dataclass(frozen=True)
class Sum(Case):
    size: int

    @property
    def name(self):
        return "sum"

    def build(self):
        return Program(jax.jit(jnp.sum), (jax.ShapeDtypeStruct((self.size,), jnp.float32),))


def test_a_case_that_fails_does_not_spoil_the_others(require, monkeypatch: pytest.MonkeyPatch):
    require("tpu-v5e")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))  # for the cases of this file
    refused, deadly, whole = compile_for("tpu-v5e", [Refused(), Deadly(), Sum(4096)])
    assert refused["reason"] == "NotImplementedError: there is no such kernel"
    assert "the compiler ended with status 3" in deadly["reason"]
    assert (whole["ok"], whole["kernels"]) == (True, [])
    assert whole["argument_bytes"] == 4 * 4096


@pytest.mark.parametrize("case", [TrainCase, GenerateCase])
def test_a_step_of_an_experiment_has_shapes_only(case: type):
    config = load_config("demo")
    program = case("demo", config).build()
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves(program.shapes))
    program.function.trace(*program.shapes)


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_names_tell_cases_apart(platform: str):
    names = [case.name for case in kernel_cases(platform)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("target", FAST)
def test_static_costs_are_those_recorded(target: str, require):
    """Kernels compile; they cost what they did, if the compilers are the same.

    Where a change is meant: python -m scripts.compile --target NAME --cases WORD ... --record
    """
    require(target)
    before, known = recorded(target)
    for found in compile_for(target, FAST[target]):
        assert found["ok"], found["reason"]
        if before == versions(target) and found["case"] in known:
            assert differences(costs(found), known[found["case"]]) == []


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("setting", ["plain", "relative"])
@pytest.mark.parametrize(
    "target", ["tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-7x", "a100", "h200"]
)
def test_attention_compiles_to_kernels(target: str, setting: str, direction: Direction, require):
    require(target)
    cases = [AttentionCase(direction, setting, dim, length) for dim in DIMS for length in LENGTHS]
    for found in compile_for(target, cases):
        assert found["ok"], f"{found['case']}: {found['reason']}"
        assert found["kernels"], f"{found['case']} has no kernel of ours"
