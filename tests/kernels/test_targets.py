"""The accelerators that programs are compiled for."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from kernels import targets
from kernels.targets import ENVIRONMENT, TARGETS, target_of

ROOT = Path(__file__).parents[2]
DESCRIBE = """
import json, sys
from kernels.targets import TARGETS
device = TARGETS[sys.argv[1]].describe().devices[0]
print(json.dumps([device.device_kind, device.platform]))
"""


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
        ("TPU7x", "tpu-7x"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
    ],
)
def test_a_device_is_known_by_its_kind(device_kind: str, name: str):
    target = target_of(device_kind)
    assert target is not None
    assert target.name == name


@pytest.mark.parametrize("device_kind", ["cpu", "NVIDIA GeForce RTX 4090", "TPU"])
def test_another_device_is_none_of_them(device_kind: str):
    assert target_of(device_kind) is None


@pytest.mark.parametrize("name", TARGETS)
def test_a_missing_compiler_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch):
    def nothing(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(targets, "version", nothing)
    with pytest.raises(ModuleNotFoundError, match=rf"{name}.*pip install -e \"\.\[aot\]\""):
        TARGETS[name].describe()


@pytest.mark.parametrize("name", ["tpu-v4", "tpu-v5p", "h100"])
def test_the_compiler_calls_a_target_as_devices_of_it_are_called(name: str):
    target = TARGETS[name]
    try:
        target.require()
    except ModuleNotFoundError as reason:
        pytest.skip(str(reason))
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE, name],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    device_kind, platform = json.loads(done.stdout)
    assert target_of(device_kind) is target
    assert platform == target.platform
