"""The benchmark's table: right ratios, one row a case, and nothing else in the file changed."""

import io

import pytest
from rich.console import Console

from eval import speed_table
from eval.speed import CASES
from eval.speed_cases import OURS, SLOW, peer_of


def result(case, cpu, tokens=4096, **more):
    return {
        "case": case, "tokens": tokens, "cpu_seconds": cpu, "wall_seconds": cpu / 2,
        "peak_bytes": 1.5e9, "load_before": 0.04, "versions": {"python": "3.12.1"},
    } | more  # fmt: skip


OURS_MEASURED = {"compile_seconds": 12.34, "temp_bytes": 700_000_000, "versions": {"jax": "0.10.2"}}
RESULTS = [
    result("torch_gpt/train/1024x4", 3.0),
    result("torch_music_transformer/train/1024x4", 8.0),
    result("longctx/train/1024x4", 2.0, **OURS_MEASURED),
    result("longctx/train-rope/1024x4", 6.0, **OURS_MEASURED),
    result("longctx/train/4096x1", 5.0, **OURS_MEASURED),
]


def test_every_case_of_ours_has_a_peer():
    alone = ("longctx/lookup/", "longctx/train-full/")
    assert {peer_of(name) for name in OURS if not name.startswith(alone)} <= set(CASES)
    assert {peer_of(name) for name in CASES if name.startswith(("torch", *alone))} == {None}
    assert peer_of("longctx/train-lsh/16384x1") == "longctx/train-full/16384x1"
    assert not any(name.startswith(SLOW) for name in CASES if "/train/" in name)


def test_ratios_are_to_the_peer_of_the_same_work_and_size():
    ratios = [speed_table.ratio(r, RESULTS) for r in RESULTS]
    assert ratios == [None, None, (4.0, "torch_music_transformer"), (0.5, "torch_gpt"), None]


def test_the_median_repeat_stands_for_a_case():
    repeats = [result("a/train/1x1", cpu) for cpu in (3.0, 9.0, 1.0)] + [
        result("b/train/1x1", cpu) for cpu in (2.0, 1.0)
    ]
    shown = speed_table.typical(repeats)
    assert [(r["case"], r["cpu_seconds"]) for r in shown] == [
        ("a/train/1x1", 3.0),
        ("b/train/1x1", 1.0),
    ]


def test_markdown_holds_numbers_ratio_and_what_they_depend_on():
    text = speed_table.markdown(RESULTS, "python -m scripts.benchmark --slow")
    rows = [line for line in text.splitlines() if line.startswith("| `longctx/train/1024x4`")]
    assert rows == [
        "| `longctx/train/1024x4` | 2.00 | 2048 | 1.00 | 1.50 | 0.70 | 12.3 | 0.0 | 4.00 "
        "| `torch_music_transformer` |"
    ]
    assert len({line.count("|") for line in text.splitlines() if line.startswith("|")}) == 1
    assert "`python -m scripts.benchmark --slow`" in text
    assert "- Versions: jax 0.10.2, python 3.12.1" in text
    assert "cores" in text


def test_the_text_around_the_markers_stays():
    before, after = "# Mine\n\\1 \\g<0>\n", "\n\nReading the numbers: mine.\n"
    text = before + speed_table.BEGIN + "\nold" + speed_table.END + after
    once = speed_table.insert(text, "first \\1")
    assert once == f"{before}{speed_table.BEGIN}\n\nfirst \\1\n\n{speed_table.END}{after}"
    assert speed_table.insert(once, "second") == once.replace("first \\1", "second")


@pytest.mark.parametrize(
    "text",
    ["", speed_table.BEGIN, speed_table.END + speed_table.BEGIN, speed_table.BEGIN * 2],
)
def test_a_file_without_its_markers_is_refused(text):
    with pytest.raises(ValueError, match="benchmark: end"):
        speed_table.insert(text, "table")


def test_the_terminal_table_fits_80_columns():
    widest = [result(name, 123.4, **OURS_MEASURED) for name in CASES]
    console = Console(width=200, file=io.StringIO())
    console.print(speed_table.terminal_table(widest))
    table = console.file.getvalue()
    assert max(len(line.rstrip()) for line in table.splitlines()) <= 80
    assert "longctx-no-position-bfloat16" in table
    assert "1.00 GPT" in table
