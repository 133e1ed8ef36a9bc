"""The tuner, with a kernel and a clock that are not real."""

import jax
import pytest

from kernels import tuning
from kernels.attention import IMPLEMENTATIONS
from kernels.attention.reference import reference
from kernels.tuning import block_sizes, load
from scripts.tune import main

WORDS = ("--dims", "8", "--lengths", "16", "--dtypes", "float32", "--heads", "2", "--repeats", "1")


@pytest.fixture
def asked(monkeypatch):
    """Return the forward sizes that a kernel asks for, on what seems to be a GPU."""
    asked = []

    def kernel(q, k, v, pattern, term, q_at, k_at):
        ways = {"term": term is not None}, {"term": term is not None, "backward": True}
        asked.append([block_sizes("pallas_gpu", 8, q.dtype, 16, **way) for way in ways])
        if asked[-1][0].columns == 128:
            raise NotImplementedError("does not fit")
        return reference(q, k, v, pattern, term, q_at, k_at)

    def seconds(function, inputs, repeats):
        jax.eval_shape(function, *inputs)
        (forward, backward), terms = asked[-1], len(inputs) - 3
        return abs(forward.rows - 64 * (2 - terms)) + abs(backward.rows - 64) + backward.columns

    monkeypatch.setattr(jax, "clear_caches", lambda: None)  # other tests need what is in them
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setitem(IMPLEMENTATIONS, "pallas_gpu", kernel)
    monkeypatch.setattr(tuning, "seconds", seconds)
    return asked


def test_the_fastest_of_each_case_is_kept(asked, call, tmp_path):
    table = tmp_path / "table.json"
    status, out, err = call(main, *WORDS, "--table", table)
    assert (status, err) == (0, "")
    assert "[4/4] pallas_gpu backward, dim 8, float32, 16, term" in out
    assert "128 x 128: does not fit" in out
    (entries,) = load(table).values()
    forward, backward = "pallas_gpu forward, dim 8, float32, 16", "pallas_gpu backward, dim 8, "
    assert len(entries) == 4
    assert entries[forward].rows == 128
    assert entries[f"{forward}, term"].rows == 64
    assert entries[f"{backward}float32, 16"] == entries[f"{backward}float32, 16, term"] == (64, 32)


def test_a_cpu_is_refused(call, tmp_path):
    status, _, err = call(main, *WORDS, "--table", tmp_path / "table.json")
    assert status == 1
    assert "those times mean nothing" in err
    assert not list(tmp_path.iterdir())
