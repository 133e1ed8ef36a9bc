"""A byte-level Transformer on the source of Python's standard library, packed rows of 512 bytes.

The data are those of the Python that runs it: compare numbers only where the manifest's hash, in
the run's provenance, is the same.

Command: python -m scripts.train text_small --run-dir runs/text_small
Hardware: two CPU cores, or any accelerator.
"""

from eval.likelihood import Likelihood
from longctx.attention.layer import Attention
from longctx.attention.positions import RoPE
from longctx.data.packing import Packed
from longctx.data.python_source import PythonSource
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer


def config() -> Train:
    """Return the experiment."""
    return Train(
        data=Packed(PythonSource()),
        model=Transformer(
            layers=4,
            model=256,
            hidden=1024,
            mixer=Attention(heads=4, position=RoPE()),
            dropout=0.0,
        ),
        optimizer=AdamW(learning_rate=2e-3, beta2=0.99, warmup=100),
        evaluators=(Likelihood(every=500, split="valid", stride=384),),
        steps=2000,
        batch=8,
        window=512,
        save_every=500,
        log_every=20,
    )
