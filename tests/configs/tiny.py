"""The smallest run that uses everything: dropout, crops, two parts a batch, two evaluators."""

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
            layers=1,
            model=16,
            hidden=16,
            mixer=Attention(heads=2, position=RelativeEmbedding(max_distance=16)),
            dropout=0.2,
        ),
        optimizer=AdamW(learning_rate=1e-2, warmup=2),
        evaluators=(
            Likelihood(every=6, split="valid", window=256, stride=256, batch=32),
            ChoraleSamples(every=100, count=1, length=32),
        ),
        steps=12,
        batch=2,
        accumulate=2,
        window=16,
        save_every=3,
        log_every=1,
    )
