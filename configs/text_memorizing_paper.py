"""The Memorizing Transformer at the paper's size: 12 layers, width 1024, memory 65,536.

The ninth layer retrieves 32 of 65,536 keys; the context is 512 tokens and the cache another 512
(Wu et al. 2022, section 4). The paper's data are arXiv, GitHub, PG-19 and C4; here it is the source
of Python, byte by byte: give another with --data.data.

Command: python -m scripts.train text_memorizing_paper --run-dir runs/text_memorizing_paper
Hardware: one H200, for which a step compiles: 4.4 GB of temporary memory beside 4.4 GB of state.
On TPU v5e, with one row on each of eight chips, it compiles and does not fit: 33 GB of 16. Not
trained.
"""

from eval.streamed_likelihood import StreamedLikelihood
from longctx.attention.patterns import Recurrent
from longctx.attention.positions import T5Bias
from longctx.data.python_source import PythonSource
from longctx.data.streaming import Streamed
from longctx.mixers import Memorizing, TransformerXL
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer


def config() -> Train:
    """Return the experiment."""
    xl = TransformerXL(heads=8, position=T5Bias(), pattern=Recurrent(segment=512, memory=512))
    memorizing = Memorizing(
        heads=8, position=T5Bias(), window=512, segment=512, memory=65_536, top_k=32,
        storage="bfloat16",
    )  # fmt: skip
    return Train(
        data=Streamed(PythonSource()),
        model=Transformer(
            layers=12,
            model=1024,
            hidden=4096,
            mixer=(xl,) * 8 + (memorizing,) + (xl,) * 3,
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=5e-4, beta2=0.99, warmup=1000),
        evaluators=(StreamedLikelihood(every=5000, chunk=512),),
        best="valid/streamed_nll",
        steps=500_000,
        batch=8,
        window=512,
        dtype="bfloat16",
        save_every=5000,
        log_every=50,
    )
