"""A small relative Transformer on the embedded chorales, in minutes on two CPU cores.

Command: make demo
"""

from eval.likelihood import Likelihood
from eval.samples import ChoraleSamples
from longctx.attention.layer import Attention
from longctx.attention.positions import RelativeEmbedding
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer
from music.chorales import Chorales


def config() -> Train:
    """Return the experiment."""
    return Train(
        data=Chorales(),
        model=Transformer(
            layers=3,
            model=128,
            hidden=512,
            mixer=Attention(heads=4, position=RelativeEmbedding(max_distance=256)),
            dropout=0.1,
        ),
        optimizer=AdamW(learning_rate=3e-3, warmup=50),
        evaluators=(
            Likelihood(every=100, split="valid"),
            ChoraleSamples(every=400, count=1, length=256),
        ),
        steps=400,
        batch=8,
        window=512,
        save_every=100,
    )
