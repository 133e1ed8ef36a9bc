"""Music Transformer on JSB: jsb_relative, and relative pitch and time in the first layer.

Command: python -m scripts.train jsb_pitch_time --run-dir runs/jsb_pitch_time --data.path jsb16.npz
Hardware: made for one GPU or TPU; on two CPU cores it runs, for days.
Published: 0.335 nats per note on valid (Huang et al. 2018, table 2), where sinusoids and voice
labels are concatenated to the embeddings as well, which these are not. Not yet measured here.
"""

from eval.likelihood import Likelihood
from eval.samples import ChoraleSamples
from longctx.attention.layer import Attention
from longctx.attention.positions import RelativeEmbedding, RelativePitchTime, Together
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer
from music.jsb import JSB


def config() -> Train:
    """Return the experiment."""
    relative = RelativeEmbedding(max_distance=256)
    first = Attention(heads=8, position=Together((relative, RelativePitchTime())))
    return Train(
        data=JSB("jsb16.npz"),
        model=Transformer(
            layers=5,
            model=512,
            hidden=512,
            mixer=(first, *(Attention(heads=8, position=relative),) * 4),
            dropout=0.2,
        ),
        optimizer=AdamW(learning_rate=1e-3, warmup=1000),
        evaluators=(
            Likelihood(every=500, split="valid", window=2048),
            ChoraleSamples(every=2000, length=1024),
        ),
        steps=20_000,
        batch=16,
        window=1024,
        save_every=500,
    )
