"""Runs on text: packed, streamed and masked, through the same loop, and scored."""

import math

import pytest

from eval.likelihood import Likelihood
from longctx.attention.layer import Attention
from longctx.attention.patterns import Causal, Full, Local, Prefix
from longctx.attention.positions import RoPE
from longctx.data.base import DataConfig
from longctx.data.masked import Masked
from longctx.data.packing import Packed
from longctx.data.source_target import SourceTarget
from longctx.data.streaming import Streamed
from longctx.data.text_folder import TextFolder
from longctx.train.config import Train
from longctx.train.loop import train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer

POEM = "the rose is red, the violet is blue, and so are you. "


@pytest.fixture
def poems(tmp_path) -> TextFolder:
    folder = tmp_path / "poems"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.txt").write_text(f"{number}: " + POEM * (1 + number % 3))
    return TextFolder(str(folder), valid_share=0.2, test_share=0.2)


def scores(data: DataConfig, pattern, run_dir) -> dict[str, float]:
    config = Train(
        data=data,
        model=Transformer(
            layers=1,
            model=32,
            hidden=64,
            mixer=Attention(heads=2, position=RoPE(), pattern=pattern),
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=2e-2, warmup=5),
        steps=100,
        batch=4,
        window=64,
        save_every=100,
    )
    return dict(Likelihood(split="valid", batch=4).run(train(config, run_dir)))


@pytest.mark.parametrize("wrap", [Packed, Streamed])
def test_a_decoder_learns_text_from_packed_and_streamed_rows(wrap, poems, tmp_path):
    found = scores(wrap(poems), Causal(), tmp_path / "run")
    assert found["valid/nll"] < 0.5  # 2.6 with letters drawn as often as they occur
    assert found["valid/bits_per_byte"] == pytest.approx(found["valid/nll"] / math.log(2))


@pytest.mark.parametrize("pattern", [Full(), Prefix(length=9), Local(size=4, ahead=2)])
def test_what_is_seen_is_not_asked_for(pattern, poems, tmp_path):
    for data in (poems, Packed(poems), SourceTarget(poems, source=8)):
        with pytest.raises(ValueError, match=r"take a causal pattern, Masked .* or SourceTarget"):
            scores(data, pattern, tmp_path / "run")


def test_wrappers_that_cut_rows_go_inside(poems):
    for outer in (Packed, Streamed):
        for inner in (Masked(poems), SourceTarget(poems, source=8), Packed(poems)):
            with pytest.raises(ValueError, match=f"write {type(inner).__name__}.{outer.__name__}"):
                outer(inner)


def test_an_encoder_learns_to_fill_in_text(poems, tmp_path):
    found = scores(Masked(Packed(poems)), Full(), tmp_path / "run")
    assert found["valid/nll"] < 2.3  # 2.6 with letters drawn as often as they occur
    assert set(found) == {"valid/nll"}
