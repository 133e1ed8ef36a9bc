"""A byte-level Memorizing Transformer on the source of Python's standard library, small.

The third of four layers retrieves from 8192 earlier bytes of the file; all keep a cache from batch
to batch (Wu et al. 2022, with the memory in the same place of the stack).

Command: python -m scripts.train text_memorizing --run-dir runs/text_memorizing
Hardware: two CPU cores, or any accelerator. Not yet trained to its end.
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
    xl = TransformerXL(heads=4, position=T5Bias(), pattern=Recurrent(segment=256, memory=256))
    memorizing = Memorizing(heads=4, position=T5Bias(), window=256, memory=8192, top_k=32)
    return Train(
        data=Streamed(PythonSource()),
        model=Transformer(
            layers=4,
            model=256,
            hidden=1024,
            mixer=(xl, xl, memorizing, xl),
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=1e-3, beta2=0.99, warmup=200),
        evaluators=(StreamedLikelihood(every=500),),
        best="valid/streamed_nll",
        steps=2000,
        batch=8,
        window=256,
        save_every=500,
        log_every=20,
    )
