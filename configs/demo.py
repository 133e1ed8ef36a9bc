"""A small relative Transformer on the embedded chorales, in minutes on two CPU cores.

Command: make demo
"""

from eval.likelihood import Likelihood
from eval.samples import ChoraleSamples
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
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
            mixer=Attention(
                heads=4, position=RelativeEmbedding(max_distance=256), pattern=Local(256)
            ),
            tied=False,
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=6e-3, beta2=0.99, warmup=50),
        evaluators=(
            Likelihood(every=500, split="valid"),
            ChoraleSamples(every=1500, count=1, length=256),
        ),
        steps=1500,
        batch=4,
        window=256,
        save_every=500,
        log_every=20,
    )
