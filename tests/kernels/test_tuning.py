"""Block sizes: the table has a say, the tuner can force them, kernels obey, files merge."""

import json

import jax
import jax.numpy as jnp
import pytest

from kernels import tuning
from kernels.attention import attention
from kernels.attention.pallas_gpu import call as gpu_call
from kernels.attention.pallas_tpu import call as tpu_call
from kernels.attention.pallas_tpu.choice import choose
from kernels.platform import building_for, device_kind
from kernels.tuning import CANDIDATES, Blocks, entry_name, forcing, load, measured, save
from longctx.attention.patterns import Causal, Local
from longctx.attention.positions.relative import RelativeTerm


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return the path of a table that is used in place of the real one."""
    path = tmp_path / "table.json"
    monkeypatch.setattr(tuning, "TABLE", path)
    return path


def ask(dim=64, dtype=jnp.bfloat16, length=1024, term=True, way="forward", kernel="pallas_gpu"):
    """Return what `measured` says of a case."""
    return measured(kernel, dim, dtype, length, term=term, way=way)


def test_nothing_is_measured_without_an_entry(table):
    assert ask() is None
    assert ask(kernel="pallas_tpu", way="both") is None


@pytest.mark.parametrize(("kernel", "way"), [("flash", "forward"), ("pallas_tpu", "forward")])
def test_an_unknown_kernel_or_way_is_refused(kernel, way):
    with pytest.raises(ValueError, match="known are pallas_tpu both, pallas_gpu forward"):
        ask(kernel=kernel, way=way)


def test_the_table_wins_for_exactly_its_case(table):
    name = entry_name("pallas_gpu", 64, jnp.bfloat16, 1024, term=True, way="forward")
    save(table, "Chip 1", {name: Blocks(32, 16)})
    with building_for("gpu", "Chip 1"):
        assert ask() == ask(length=513) == ask(dtype="bfloat16") == (32, 16)
        others = [ask(length=512), ask(length=1025), ask(dtype=jnp.float32), ask(dim=32)]
        others += [ask(term=False), ask(way="backward")]
    with building_for("gpu", "Chip 2"):
        others.append(ask())
    assert others == [None] * 7


def test_the_device_here_counts_if_no_other_is_named(table):
    name = entry_name("pallas_tpu", 64, jnp.bfloat16, 1024, term=True, way="both")
    save(table, jax.devices()[0].device_kind, {name: Blocks(8, 8)})
    assert ask(kernel="pallas_tpu", way="both") == (8, 8)
    with building_for("tpu", "TPU v4"):
        assert ask(kernel="pallas_tpu", way="both") is None


def test_what_is_forced_wins_over_the_table_in_its_way(table):
    name = entry_name("pallas_gpu", 64, jnp.bfloat16, 1024, term=True, way="backward")
    save(table, device_kind(), {name: Blocks(32, 64)})
    with forcing(Blocks(8, 16), way="backward"):
        assert ask(way="backward") == (8, 16)
        assert ask(way="forward") is None
    with forcing(None, way="backward"):
        assert ask(way="backward") is None
    assert ask(way="backward") == (32, 64)


def plans(monkeypatch, module, passes, kernel, has_term):
    """Return the plans that a kernel's passes are given while a gradient is traced."""
    seen = {}

    def watched(name, call):
        def note(plan, *inputs):
            seen[name] = plan
            return call(plan, *inputs)

        return note

    for name in passes:
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    inputs = [jax.ShapeDtypeStruct((1, 1, 2048, 64), jnp.float32)] * 3
    if has_term:
        table = jax.ShapeDtypeStruct((1, 2048, 64), jnp.float32)
        inputs.append(jax.eval_shape(lambda x: RelativeTerm(x, "clip"), table))

    def loss(q, k, v, term=None):
        out = attention(q, k, v, pattern=Causal(), term=term, implementation=kernel)
        return jnp.sum(jnp.asarray(out))

    jax.eval_shape(jax.grad(loss, argnums=range(len(inputs))), *inputs)
    return seen


@pytest.mark.parametrize("has_term", [False, True])
def test_the_tpu_kernel_obeys(table, monkeypatch, has_term):
    def sizes():
        found = plans(monkeypatch, tpu_call, ("forward", "gradients"), "pallas_tpu", has_term)
        return {name: plan.size for name, plan in found.items()}

    name = entry_name("pallas_tpu", 64, jnp.float32, 2048, term=has_term, way="both")
    assert sizes() == {"forward": 256, "gradients": 256}  # this device counts as the smallest
    for size in (128, 512):
        with forcing(Blocks(size, size), way="both"):
            assert sizes() == {"forward": size, "gradients": size}
    save(table, device_kind(), {name: Blocks(512, 512)})
    assert sizes() == {"forward": 512, "gradients": 512}


@pytest.mark.parametrize(
    ("chip", "dtype", "pattern", "length", "size"),
    [
        ("TPU v5 lite", jnp.float32, Causal(), 2048, 256),
        ("TPU v5 lite", jnp.bfloat16, Causal(), 2048, 512),
        ("TPU v5 lite", jnp.bfloat16, Causal(), 200, 256),
        ("TPU v5 lite", jnp.bfloat16, Causal(), 16384, 1024),
        ("TPU v5 lite", jnp.bfloat16, Local(512), 16384, 512),  # large tiles would hold more pairs
        ("TPU v4", jnp.bfloat16, Causal(), 16384, 256),
    ],
)
def test_the_tpu_kernel_has_a_rule_of_thumb(table, chip, dtype, pattern, length, size):
    q = jax.ShapeDtypeStruct((1, 1, length, 64), dtype)
    with building_for("tpu", chip):
        assert choose(q, q, pattern, has_term=True).size == size


@pytest.mark.parametrize("has_term", [False, True])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_gpu_kernel_obeys_in_each_way(table, monkeypatch, way, has_term):
    passes = ("forward", "backward_q", "backward_kv", *(("backward_term",) if has_term else ()))

    def blocks():
        found = plans(monkeypatch, gpu_call, passes, "pallas_gpu", has_term)
        assert set(found) == set(passes)
        assert len(set(found.values())) == 1
        return found["forward"].blocks._asdict()

    usual, size = blocks(), {"rows": 128, "columns": 16}  # no kernel has these by default
    with forcing(Blocks(**size), way=way):
        forced = blocks()
    for name, of in usual.items():
        assert forced[name] == (of._replace(**size) if name.startswith(way) else of)


def test_saving_adds_to_what_is_there(table):
    save(table, "Chip 1", {"a": Blocks(1, 2), "b": Blocks(3, 4)})
    save(table, "Chip 2", {"a": Blocks(5, 6)})
    save(table, "Chip 1", {"b": Blocks(7, 8), "c": None})
    assert load(table) == {"Chip 1": {"a": (1, 2), "b": (7, 8), "c": None}, "Chip 2": {"a": (5, 6)}}
    assert json.loads(table.read_text())["Chip 1"] == {"a": [1, 2], "b": [7, 8], "c": None}
    assert [path.name for path in table.parent.iterdir()] == [table.name]


@pytest.mark.parametrize("text", ["[1", "[]", '{"Chip": {"a": [1]}}', '{"Chip": 3}'])
def test_another_file_is_refused_and_left_alone(table, text):
    table.write_text(text)
    with pytest.raises(ValueError, match="no table of block sizes"):
        save(table, "Chip", {"a": Blocks(1, 2)})
    assert table.read_text() == text


def test_the_table_that_comes_with_the_package_is_one():
    for entries in load(tuning.TABLE).values():
        assert all(blocks is None or min(blocks) > 0 for blocks in entries.values())


def test_candidates_are_timed_with_their_sizes_and_may_fail(monkeypatch):
    asked = []

    @jax.jit  # like a kernel that asks inside of what it jits
    def inner(x):
        blocks = ask(dtype=x.dtype)
        asked.append(blocks)
        if blocks and blocks.columns > 64:
            raise NotImplementedError("does not fit")
        return x * 2

    results = list(
        tuning.time_candidates("pallas_gpu", inner, (jnp.ones(3),), repeats=2, way="forward")
    )
    candidates = CANDIDATES["pallas_gpu"]["forward"]
    assert [blocks for blocks, _ in results] == asked == [None, *candidates]
    for blocks, result in results:
        if blocks and blocks.columns > 64:
            assert isinstance(result, NotImplementedError)
        else:
            assert isinstance(result, float)
            assert result > 0
