"""The README's promises that a machine can check."""

import re
from pathlib import Path

import pytest

from configs.catalogue import names
from scripts.variants import table, with_table

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})


def test_the_table_of_variants_is_the_generated_one():
    text = README.read_text()
    assert text == with_table(text), "run python -m scripts.variants --write True"


def test_every_variant_and_its_file_are_in_the_table():
    rows = table().splitlines()[2:]
    assert any("`RelativeEmbedding`" in row for row in rows)
    for row in rows:
        file = re.search(r"\]\((.*?\.py)\)", row)
        assert file, row
        assert (README.parent / file.group(1)).is_file(), row


def test_a_readme_without_markers_is_refused():
    with pytest.raises(ValueError, match="around its table"):
        with_table("nothing")


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text()):
        assert target.startswith("http") or (README.parent / target).exists(), target


def test_every_experiment_says_how_to_run_it():
    assert set(names()) == {"demo", "jsb_baseline", "jsb_pitch_time", "jsb_relative", "text_small"}
    assert all(names().values())
