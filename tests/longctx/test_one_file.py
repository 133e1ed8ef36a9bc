"""A variant is one file: three are written into a copy of the packages, and nothing else is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KIT = "tests/longctx/test_property_kit.py"

POSITION = '''\
"""Scores swing with the distance."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from kernels.attention import Entries, Term
from longctx.attention.positions.base import AttentionPlace, Position


@dataclass(frozen=True)
class Dizzy(Position):
    """Each head learns how far its scores swing."""

    period: float = 8.0
    """Tokens of one swing."""

    paper = "Nobody 1999"

    def in_attention(self, heads, dim, rngs):
        return _Dizzy(self.period, heads)


class _Dizzy(AttentionPlace):
    def __init__(self, period, heads):
        self.period, self.swing = period, nnx.Param(jnp.ones(heads))

    def term(self):
        return DizzyTerm(self.swing[...], self.period)


@partial(jax.tree_util.register_dataclass, data_fields=["swing"], meta_fields=["period"])
@dataclass(frozen=True)
class DizzyTerm(Term):
    swing: jax.Array
    period: float

    def scores(self, q, q_at, k_at):
        distance = q_at.positions[:, None, :, None] - k_at.positions[:, None, None, :]
        return self.swing[:, None, None] * jnp.sin(distance / self.period)

    def by_distance(self, distances):
        return Entries(bias=self.swing[:, None] * jnp.sin(jnp.asarray(distances) / self.period))
'''

MIXER = '''\
"""A layer that carries nothing between tokens."""

from dataclasses import dataclass

from kernels.attention.places import Places
from longctx.dense import Linear
from longctx.mixer import Mixer, MixerConfig


@dataclass(frozen=True)
class Lazy(MixerConfig):
    """One matrix for every token."""

    def build(self, model, dtype, rngs):
        return LazyLayer(model, dtype, rngs)


class LazyLayer(Mixer):
    def __init__(self, model, dtype, rngs):
        self.out = Linear(model, model, dtype, rngs)

    def init_state(self, batch, capacity):
        return ()

    def __call__(self, x, at=Places(), state=None):
        return self.out(x), state
'''

ROWS = {
    "| mixer | [`Lazy`](longctx/mixers/lazy.py) |  | yes | fixed size | its own | 65,536 |",
    "| position | [`Dizzy`](longctx/attention/positions/dizzy.py) "
    "| Nobody 1999 | yes | yes | all | 8 |",
    "| pattern | [`Chunked`](longctx/attention/patterns/chunked.py) "
    "| Qiu et al. 2020 | yes | ring of 128 | all | 0 |",
}


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    """Return a copy of the project with three files more."""
    house = tmp_path_factory.mktemp("house")
    for room in ("kernels", "longctx", "music", "eval", "configs", "scripts"):
        shutil.copytree(ROOT / room, house / room, ignore=shutil.ignore_patterns("__pycache__"))
    (house / "tests/longctx").mkdir(parents=True)
    for file in ("pyproject.toml", "tests/conftest.py", KIT):
        shutil.copy(ROOT / file, house / file)
    readme = (ROOT / "README.md").read_text()
    (pattern,) = re.findall(r"<!-- file -->\n```python\n(.*?)```", readme, re.DOTALL)
    (house / "longctx/attention/patterns/chunked.py").write_text(pattern)
    (house / "longctx/attention/positions/dizzy.py").write_text(POSITION)
    (house / "longctx/mixers/lazy.py").write_text(MIXER)
    return house


def python(house: Path, *arguments: str) -> str:
    """Return what Python prints there."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=house, env={**os.environ, "PYTHONPATH": str(house)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_table_gets_their_rows_and_no_other(house):
    printed = python(house, "-m", "scripts.variants").splitlines()
    known = (ROOT / "README.md").read_text().splitlines()
    assert {row for row in printed if row not in known} == ROWS


FLAGS = """
from configs.catalogue import load_config
from longctx.flags import training_flags
from longctx.variants import spell

def mixer(*flags):
    default = load_config("demo")
    print(spell(training_flags(default, ["--run-dir", "r", *flags], "train").config.model.mixer))

mixer("--model.mixer.position", "Dizzy(period=4.0)", "--model.mixer.pattern", "Chunked(8)")
mixer("--model.mixer", "Lazy")
mixer("--model.mixer", "Attention(position=Dizzy, pattern=Chunked(8) | Local(4))")
"""


def test_flags_know_them(house):
    assert python(house, "-c", FLAGS).splitlines() == [
        "Attention(heads=4, position=Dizzy(period=4.0), pattern=Chunked(size=8))",
        "Lazy()",
        "Attention(position=Dizzy(), pattern=Union(parts=(Chunked(size=8), Local(size=4))))",
    ]


KIT_RUNS = f"""
import pytest

kit = ["{KIT}", "-p", "no:cacheprovider", "-m", "not slow", "-k"]
pytest.main([*kit, "Chunked or Dizzy or Lazy", "--collect-only", "-q"])
few = "Lazy or (Chunked or Dizzy) and future or Chunked and row_blocks"
raise SystemExit(pytest.main([*kit, few, "-rA"]))
"""


def test_the_kit_holds_them_to_its_promises_with_every_kernel(house, monkeypatch):
    """It lists all tests for all three, and passes those that take little time."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiling is most of that time
    printed = python(house, "-c", KIT_RUNS)
    case = KIT + r"::test_(\w+)\[(.*)\]$"
    listed = re.findall(f"^{case}", printed, re.MULTILINE)
    passed = re.findall(f"^PASSED {case}", printed, re.MULTILINE)
    lazy = {test for test, of in listed if "Lazy()" in of}
    assert lazy == {test for test, of in passed if "Lazy()" in of}
    for name in ("Chunked(size=6)", "Dizzy()"):
        tests = {test for test, of in listed if name in of}
        assert tests | {"shifting_all_positions_changes_nothing"} == {
            *lazy,
            "every_implementation",
        }
        for kernel in ("blockwise", "row_blocks", "decode"):
            assert any(name in of and f"-{kernel}-" in of for _, of in listed), kernel
        assert any(name in of and "future" in test for test, of in passed)
    assert any("Chunked" in of and "-row_blocks-" in of for _, of in passed)
