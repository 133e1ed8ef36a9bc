"""A Routing Transformer on Bach's chorales, small: half of the last layer's heads route.

Command: python -m scripts.train music_routing --run-dir runs/music_routing
Hardware: two CPU cores, or any accelerator. Not yet trained to its end.
"""

from eval.likelihood import Likelihood
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import RelativeEmbedding
from longctx.mixers import Routing
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer
from music.chorales import Chorales


def config() -> Train:
    """Return the experiment."""
    table = RelativeEmbedding(max_distance=128)
    local = Attention(heads=4, position=table, pattern=Local(128))
    routing = Routing(heads=4, local_heads=2, clusters=16, window=32, position=table)
    return Train(
        data=Chorales(),
        model=Transformer(
            layers=3,
            model=128,
            hidden=512,
            mixer=(local, local, routing),
            dropout=0.1,
        ),
        optimizer=AdamW(learning_rate=1e-3, warmup=100),
        evaluators=(Likelihood(every=250, split="valid"),),
        steps=1000,
        batch=4,
        window=512,
        save_every=250,
        log_every=20,
    )
