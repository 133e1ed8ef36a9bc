"""Music Transformer on JSB: jsb_relative, and relative pitch and time in the first layer.

Command: python -m scripts.train jsb_pitch_time --run-dir runs/jsb_pitch_time --data.path jsb16.npz
Hardware: made for one GPU or TPU; on two CPU cores it runs, for days.
Published: 0.335 nats per note on valid (Huang et al. 2018, table 2), where sinusoids and voice
labels are concatenated to the embeddings as well, which these are not. Not yet measured here.
"""

from dataclasses import replace

from configs import jsb_relative
from longctx.attention.layer import Attention
from longctx.attention.positions import RelativePitchTime, Together
from longctx.train.config import Train
from longctx.transformer import Transformer


def config() -> Train:
    """Return the experiment: the other with one layer changed."""
    base = jsb_relative.config()
    assert isinstance(base.model, Transformer)
    first, *others = base.model.mixers
    assert isinstance(first, Attention)
    first = replace(first, position=Together((first.position, RelativePitchTime())))
    return replace(base, model=replace(base.model, mixer=(first, *others)))
