"""A Memorizing Transformer on Bach's chorales, small: the last layer retrieves the whole piece.

Command: python -m scripts.train music_memorizing --run-dir runs/music_memorizing
Hardware: two CPU cores, or any accelerator. Not yet trained to its end.
"""

from eval.streamed_likelihood import StreamedLikelihood
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import RelativeEmbedding
from longctx.data.streaming import Streamed
from longctx.mixers import Memorizing
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer
from music.chorales import Chorales


def config() -> Train:
    """Return the experiment."""
    table = RelativeEmbedding(max_distance=128)
    local = Attention(heads=4, position=table, pattern=Local(128))
    memorizing = Memorizing(heads=4, position=table, window=128, memory=2048, top_k=16)
    return Train(
        data=Streamed(Chorales()),
        model=Transformer(
            layers=3,
            model=128,
            hidden=512,
            mixer=(local, local, memorizing),
            dropout=0.1,
        ),
        optimizer=AdamW(learning_rate=1e-3, warmup=100),
        evaluators=(StreamedLikelihood(every=250, edges=(128, 256, 512)),),
        best="valid/streamed_nll",
        steps=1000,
        batch=8,
        window=256,
        save_every=250,
        log_every=20,
    )
