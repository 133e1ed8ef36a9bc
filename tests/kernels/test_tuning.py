"""Block sizes: the table wins where it has an entry, the tuner can force them, files merge."""

import json

import jax
import jax.numpy as jnp
import pytest

from kernels import tuning
from kernels.platform import building_for
from kernels.tuning import CANDIDATES, Blocks, block_sizes, entry_name, forcing, load, save


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Return the path of a table that is used in place of the real one."""
    path = tmp_path / "table.json"
    monkeypatch.setattr(tuning, "TABLE", path)
    return path


def test_the_rule_of_thumb_without_an_entry(table):
    assert block_sizes("pallas_tpu", 128, jnp.bfloat16, 900, term=True) == (512, 512)
    assert block_sizes("pallas_tpu", 128, jnp.float32, 900, term=True) == (256, 256)
    assert block_sizes("pallas_gpu", 64, jnp.float32, 900, term=False) == (128, 64)
    assert block_sizes("pallas_gpu", 128, jnp.bfloat16, 900, term=True) == (64, 64)
    with pytest.raises(ValueError, match="known are pallas_tpu, pallas_gpu"):
        block_sizes("flash", 64, jnp.float32, 900, term=False)


def test_the_table_wins_for_exactly_its_case(table):
    case = {"term": True, "backward": False}
    save(
        table, "Chip 1", {entry_name("pallas_gpu", 64, jnp.bfloat16, 1024, **case): Blocks(32, 16)}
    )

    def ask(dtype=jnp.bfloat16, length=1024, dim=64, kind="Chip 1", **changed):
        return block_sizes(
            "pallas_gpu", dim, dtype, length, device_kind=kind, **{**case, **changed}
        )

    usual = (128, 64)
    assert ask() == ask(length=513) == ask(dtype="bfloat16") == (32, 16)
    assert ask(length=512) == ask(length=1025) == ask(kind="Chip 2") == ask(jnp.float16) == usual
    assert ask(dim=32) == ask(term=False) == ask(backward=True) == usual


def test_the_device_here_counts_only_if_the_program_is_built_for_it(table):
    here = jax.devices()[0].device_kind
    name = entry_name("pallas_tpu", 64, jnp.float32, 64, term=False, backward=True)
    save(table, here, {name: Blocks(8, 8)})

    def ask():
        return block_sizes("pallas_tpu", 64, jnp.float32, 64, term=False, backward=True)

    assert ask() == (8, 8)
    with building_for("tpu"):
        assert ask() == (512, 512)


def test_forced_sizes_win_over_the_table_in_their_direction(table):
    def ask(backward):
        return block_sizes("pallas_tpu", 64, jnp.float32, 64, term=False, backward=backward)

    with forcing(Blocks(8, 16), backward=True):
        assert ask(backward=True) == (8, 16)
        assert ask(backward=False) == (512, 512)
    assert ask(backward=True) == (512, 512)


def test_saving_adds_to_what_is_there(table):
    save(table, "Chip 1", {"a": Blocks(1, 2), "b": Blocks(3, 4)})
    save(table, "Chip 2", {"a": Blocks(5, 6)})
    save(table, "Chip 1", {"b": Blocks(7, 8)})
    assert load(table) == {"Chip 1": {"a": (1, 2), "b": (7, 8)}, "Chip 2": {"a": (5, 6)}}
    assert json.loads(table.read_text())["Chip 2"] == {"a": [5, 6]}
    assert [path.name for path in table.parent.iterdir()] == [table.name]


@pytest.mark.parametrize("text", ["[1", "[]", '{"Chip": {"a": [1]}}', '{"Chip": 3}'])
def test_another_file_is_refused_and_left_alone(table, text):
    table.write_text(text)
    with pytest.raises(ValueError, match="no table of block sizes"):
        save(table, "Chip", {"a": Blocks(1, 2)})
    assert table.read_text() == text


def test_the_table_that_comes_with_the_package_is_one():
    for entries in load(tuning.TABLE).values():
        assert all(min(blocks) > 0 for blocks in entries.values())


def test_candidates_are_timed_with_their_sizes_and_may_fail(monkeypatch):
    asked = []

    @jax.jit  # like a kernel that asks inside of what it jits
    def inner(x):
        blocks = block_sizes("pallas_gpu", 64, x.dtype, 64, term=False)
        asked.append(blocks)
        if blocks.columns > 64:
            raise NotImplementedError("does not fit")
        return x * 2

    results = list(
        tuning.time_candidates("pallas_gpu", inner, (jnp.ones(3),), repeats=2, backward=False)
    )
    assert [blocks for blocks, _ in results] == asked == list(CANDIDATES["pallas_gpu"])
    for blocks, result in results:
        if blocks.columns > 64:
            assert isinstance(result, NotImplementedError)
        else:
            assert isinstance(result, float)
            assert result > 0
