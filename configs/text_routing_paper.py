"""The Routing Transformer about as large as the paper's on PG-19: 22 layers, 8192 tokens.

The last two layers route in 4 of 8 heads, 16 clusters of 512; the others are local, window 512 (Roy
et al. 2021, section 5.4; published: 33.2 perplexity for each word of PG-19). The text here is the
source of Python, byte by byte: give another with --data.data.

Command: python -m scripts.train text_routing_paper --run-dir runs/text_routing_paper
Hardware: one H200, for which a step compiles: 18.6 GB of temporary memory beside 3.5 GB of state.
For TPU v5e, with one row on each of eight chips, the compiler had no answer in 15 minutes. Not
trained.
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
    table = RelativeEmbedding(max_distance=512)
    local = Attention(heads=8, position=table, pattern=Local(512))
    routing = Routing(heads=8, local_heads=4, clusters=16, window=512, position=table)
    return Train(
        data=Packed(PythonSource()),
        model=Transformer(
            layers=22,
            model=1024,
            hidden=4096,
            mixer=(local,) * 20 + (routing,) * 2,
            dropout=0.1,
            remat=True,
        ),
        optimizer=AdamW(learning_rate=5e-4, beta2=0.98, warmup=10_000),
        evaluators=(Likelihood(every=5000, split="valid", window=8192, stride=4096, batch=1),),
        steps=500_000,
        batch=8,
        window=8192,
        dtype="bfloat16",
        save_every=5000,
        log_every=50,
    )
