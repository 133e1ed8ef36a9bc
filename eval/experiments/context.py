"""Does reaching back beyond the window help on text? Python sources, byte by byte."""

from eval.experiments.base import Experiment
from eval.streamed_likelihood import StreamedLikelihood
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local, Recurrent
from longctx.attention.positions import RelativeEmbedding
from longctx.data.python_source import PythonSource
from longctx.data.streaming import Streamed
from longctx.evaluator import Trained
from longctx.mixer import MixerConfig
from longctx.mixers import TransformerXL
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer

WINDOW = 256


class ContextExperiment(Experiment):
    """Two layers; the same stream of bytes in the same order for every variant."""

    def variants(self) -> dict[str, Train]:
        table = RelativeEmbedding(max_distance=WINDOW)
        local = Attention(heads=4, position=table, pattern=Local(WINDOW))
        longer = RelativeEmbedding(max_distance=2 * WINDOW)
        xl = TransformerXL(heads=4, position=longer, pattern=Recurrent(WINDOW, WINDOW))
        return {
            "local": _config((local,) * 2),
            "xl": _config((xl,) * 2),
        }

    def measure(self, trained: Trained) -> dict[str, float]:
        streamed = StreamedLikelihood(split="valid", longest=4096, edges=(256, 512, 1024, 2048))
        return {
            name.removeprefix("valid/streamed_"): value for name, value in streamed.run(trained)
        }


def _config(mixer: tuple[MixerConfig, ...]) -> Train:
    return Train(
        data=Streamed(PythonSource()),
        model=Transformer(layers=len(mixer), model=128, hidden=512, mixer=mixer, dropout=0.0),
        optimizer=AdamW(learning_rate=2e-3, beta2=0.99, warmup=100),
        steps=1000,
        batch=8,
        window=WINDOW,
        save_every=500,
        log_every=50,
    )
