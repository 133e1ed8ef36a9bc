"""A byte-level Routing Transformer on the source of Python's standard library, small.

Half of the heads of the last two layers route; all other heads are local (Roy et al. 2021, with
routing in the upper layers).

Command: python -m scripts.train text_routing --run-dir runs/text_routing
Hardware: two CPU cores, or any accelerator. Not yet trained to its end.
"""

from eval.likelihood import Likelihood
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import RelativeEmbedding
from longctx.data.packing import Packed
from longctx.data.python_source import PythonSource
from longctx.mixers import Routing
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer


def config() -> Train:
    """Return the experiment."""
    table = RelativeEmbedding(max_distance=128)
    local = Attention(heads=4, position=table, pattern=Local(128))
    routing = Routing(heads=4, local_heads=2, clusters=16, window=64, position=table)
    return Train(
        data=Packed(PythonSource()),
        model=Transformer(
            layers=4,
            model=256,
            hidden=1024,
            mixer=(local, local, routing, routing),
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=1e-3, beta2=0.99, warmup=200),
        evaluators=(Likelihood(every=500, split="valid", stride=768),),
        steps=2000,
        batch=4,
        window=1024,
        save_every=500,
        log_every=20,
    )
