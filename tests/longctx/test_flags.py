"""Flags: every field has one, and a mistake ends with status 2 and the closest that would do."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs.catalogue import load_config
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import RoPE
from longctx.flags import training_flags
from longctx.mixers import LSTM

TINY = load_config(str(Path(__file__).parents[1] / "configs" / "tiny.py"))


def parsed(*arguments: str):
    return training_flags(TINY, ["--run-dir", "somewhere", *arguments], "train tiny")


def refused(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        parsed(*arguments)
    assert stop.value.code == 2
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).replace("│", " ").split())


def test_without_flags_the_config_is_the_default():
    flags = parsed()
    assert flags.run_dir == Path("somewhere")
    assert flags.config == TINY


def test_flags_change_the_fields_they_name_and_no_other():
    config = parsed(
        *("--steps", "7", "--optimizer.learning-rate", "0.5", "--model.tied", "False"),
        *("--data.held", "True", "--dtype", "bfloat16", "--evaluators.0.every", "3"),
        *("--model.mixer.kv-heads", "1"),
    ).config
    mixer = replace(TINY.model.mixer, kv_heads=1)
    assert config == replace(
        TINY,
        steps=7,
        dtype="bfloat16",
        optimizer=replace(TINY.optimizer, learning_rate=0.5),
        model=replace(TINY.model, tied=False, mixer=mixer),
        data=replace(TINY.data, held=True),
        evaluators=(replace(TINY.evaluators[0], every=3), *TINY.evaluators[1:]),
    )


def test_variants_are_chosen_by_their_spelling():
    config = parsed(
        *("--model.mixer.position", "RoPE(base=500.0)", "--model.mixer.pattern", "Local(8)")
    ).config
    assert config.model.mixer.position == RoPE(base=500.0)
    assert config.model.mixer.pattern == Local(8)


def test_a_mixer_is_chosen_whole_and_its_fields_on_top():
    assert parsed("--model.mixer", "LSTM(width=8)").config.model.mixer == LSTM(width=8)
    config = parsed("--model.mixer=Attention(heads=4)", "--model.mixer.kv-heads", "2").config
    assert config.model.mixer == Attention(heads=4, kv_heads=2)


def test_each_layer_may_have_a_mixer_of_its_own():
    config = parsed(
        *("--model.mixer", "(Attention(pattern=Local(8)),) * 2 + (LSTM,)"),
        *("--model.mixer.0.heads", "2"),
    ).config
    local = Attention(pattern=Local(8))
    assert config.model.mixer == (replace(local, heads=2), local, LSTM())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model.mixer", "LTSM"], "Did you mean LSTM"),
        (["--model.mixer", "3"], "is no MixerConfig"),
        (["--model.mixer", "(LSTM,) * 1000000000"], "write it like"),
        (["--model.mixer", "(LSTM,) * 1.5"], "write it like"),
        (["--model.mixer", "LSTM + LSTM"], "write it like"),
        (["--step", "7"], "--steps"),
        (["--optimizer.learning-rat", "1"], "--optimizer.learning-rate"),
        (["--model.mixer.positions", "RoPE"], "--model.mixer.position"),
        (["--steps", "many"], "many"),
        (["--dtype", "float16"], "bfloat16"),
        (["--model.mixer.position", "Rope"], "RoPE"),
        (["--model.mixer.position", "RoPE(bas=1)"], "base"),
        (["--model.mixer.pattern", "Local(size=0)"], "at least 1 token"),
    ],
)
def test_a_mistake_ends_with_status_2_and_names_what_would_do(capsys, arguments, named):
    assert named in refused(capsys, *arguments)


def test_values_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match="batch 3 must be a multiple of accumulate 2"):
        parsed("--batch", "3")
    with pytest.raises(ValueError, match="steps must be at least 1"):
        parsed("--steps", "0")


def test_the_folder_must_be_named(capsys):
    with pytest.raises(SystemExit) as stop:
        training_flags(TINY, [], "train tiny")
    assert stop.value.code == 2
    assert "--run-dir" in capsys.readouterr().err


def test_the_help_shows_every_field_with_its_default(capsys):
    with pytest.raises(SystemExit) as stop:
        parsed("--help")
    assert stop.value.code == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in ("--optimizer.learning-rate", "0.01", "Peak, reached at the end of the warm-up"):
        assert part in text
    assert "RelativeEmbedding(max_distance=16)" in text
