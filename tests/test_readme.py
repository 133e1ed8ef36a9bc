"""The README's promises that a machine can check."""

import re
import shlex
from pathlib import Path

import pytest

from configs.catalogue import load_config, names
from longctx.flags import training_flags
from scripts.variants import with_table

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs():
    example, _ = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(example.splitlines()) <= 15
    exec(compile(example, "README.md", "exec"), {})


def test_the_commands_for_training_are_understood():
    text = README.read_text().replace("\\\n", " ")
    commands = re.findall(r"^python -m scripts\.train (.*)", text, re.MULTILINE)
    assert len(commands) >= 2
    for command in commands:
        name, *flags = shlex.split(command)
        default = load_config(name)
        assert training_flags(default, flags, "train").config.model != default.model


def test_the_table_of_variants_is_the_generated_one():
    text = README.read_text()
    assert text == with_table(text), "run python -m scripts.variants --write True"


def cells(name: str) -> list[str]:
    """Return a variant's cells in the README: paper, causal, cached, kernels, parameters."""
    (row,) = (row for row in README.read_text().splitlines() if f"[`{name}`]" in row)
    return [cell.strip() for cell in row.split("|")][3:-1]


def test_the_table_says_what_is_known_of_some_variants():
    attention = 4 * 256 * 256
    lstm = 2 * 256 * 4 * 256 + 4 * 256
    papers = ("Su et al. 2021", "Beltagy et al. 2020", "Raffel et al. 2020", "Vaswani et al. 2017")
    assert cells("Attention")[1:] == ["yes", "yes", "all", f"{attention:,}"]
    assert cells("LSTM")[1:4] == ["yes", "fixed size", "its own"]
    assert int(cells("LSTM")[4].replace(",", "")) >= lstm
    assert cells("RoPE") == [papers[0], "yes", "yes", "all", "0"]
    assert cells("Learned")[4] == f"{512 * 256:,} once"
    assert cells("RelativeEmbedding")[4] == f"{8 * 512 * 32:,}"
    assert cells("RelativePitchTime")[3] == "all but row_blocks, pallas_tpu, pallas_gpu"
    assert cells("Local") == [papers[1], "yes", "ring of 256", "all", "0"]
    assert cells("Prefix") == [papers[2], "prefix", "yes", "all", "0"]
    assert cells("Full") == [papers[3], "no", "no", "all", "0"]


def test_a_readme_without_markers_is_refused():
    with pytest.raises(ValueError, match="around its table"):
        with_table("nothing")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert target.startswith("http") or (README.parent / target).exists(), target


def test_every_experiment_says_how_to_run_it():
    assert {"demo", "jsb_relative", "text_small", "text_memorizing", "music_routing"} < set(names())
    assert all(names().values())
