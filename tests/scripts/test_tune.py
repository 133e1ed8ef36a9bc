"""The tuner, with a kernel and a clock that are not real."""

import jax
import pytest

from kernels import tuning
from kernels.attention import IMPLEMENTATIONS
from kernels.attention.reference import reference
from kernels.platform import device_kind
from kernels.tuning import CANDIDATES, Blocks, load, measured, save
from scripts.tune import main

WORDS = ("--dims", "8", "--lengths", "16", "--dtypes", "float32", "--heads", "2", "--repeats", "1")


@pytest.fixture
def seem(monkeypatch):
    """Return a function that makes this device seem one of a platform, with a fake kernel.

    Its seconds are how far the rows are from 64, or 128 without a term, and the columns; the rule
    of thumb takes what is given.
    """

    def seem(platform: str, rule_of_thumb: float):
        kernel, asked = f"pallas_{platform}", []

        def attend(q, k, v, pattern, term, q_at, k_at):
            has_term = term is not None
            found = {
                way: measured(kernel, 8, q.dtype, 16, term=has_term, way=way)
                for way in CANDIDATES[kernel]
            }
            asked.append((64 if has_term else 128, found))
            if any(blocks and blocks.columns == 128 for blocks in found.values()):
                raise NotImplementedError("does not fit")
            return reference(q, k, v, pattern, term, q_at, k_at)

        def seconds(function, inputs, repeats):
            parts = jax.tree.leaves(jax.eval_shape(function, *inputs))
            best, found = asked[-1]
            blocks = found["forward"] if len(parts) == 1 else [*found.values()][-1]
            return abs(blocks.rows - best) + blocks.columns if blocks else rule_of_thumb

        monkeypatch.setattr(jax, "default_backend", lambda: platform)
        monkeypatch.setitem(IMPLEMENTATIONS, kernel, attend)
        monkeypatch.setattr(tuning, "seconds", seconds)

    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests need what is in them
    return seem


def test_the_fastest_of_each_case_is_kept(seem, call, tmp_path):
    table = tmp_path / "table.json"
    seem("gpu", rule_of_thumb=1000)
    status, out, err = call(main, *WORDS, "--table", table)
    assert (status, err) == (0, "")
    assert "[4/4] pallas_gpu backward, dim 8, float32, 16, term" in out
    assert "128 x 128: does not fit" in out
    assert "rule of thumb: 1000000.000 ms" in out
    assert load(table) == {
        device_kind(): {
            "pallas_gpu forward, dim 8, float32, 16": (128, 32),
            "pallas_gpu backward, dim 8, float32, 16": (128, 64),
            "pallas_gpu forward, dim 8, float32, 16, term": (64, 32),
            "pallas_gpu backward, dim 8, float32, 16, term": (64, 32),
        }
    }


def test_one_size_of_the_tpu_kernel_is_tuned_for_both_ways(seem, call, tmp_path):
    table = tmp_path / "table.json"
    seem("tpu", rule_of_thumb=1000)
    assert call(main, *WORDS, "--table", table).status == 0
    name = "pallas_tpu both, dim 8, float32, 16"
    assert load(table) == {device_kind(): {name: (256, 256), f"{name}, term": (256, 256)}}


def test_a_rule_of_thumb_that_is_fastest_stays(seem, call, tmp_path):
    table = tmp_path / "table.json"
    name = "pallas_tpu both, dim 8, float32, 16"
    save(table, device_kind(), {name: Blocks(512, 512)})
    seem("tpu", rule_of_thumb=0)
    assert call(main, *WORDS, "--table", table).status == 0
    assert load(table) == {device_kind(): {name: None, f"{name}, term": None}}


def test_a_cpu_is_refused(call, tmp_path):
    status, _, err = call(main, *WORDS, "--table", tmp_path / "table.json")
    assert status == 1
    assert "those times mean nothing" in err
    assert not list(tmp_path.iterdir())
