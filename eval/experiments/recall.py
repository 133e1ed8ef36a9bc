"""Does a long-range mechanism find what lies outside the local window? Recall at a distance."""

from eval.accuracy import Accuracy
from eval.experiments.base import Experiment
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import NoPosition, RelativeEmbedding
from longctx.data.recall import Recall
from longctx.evaluator import Trained
from longctx.mixer import MixerConfig
from longctx.mixers import Memorizing, Routing
from longctx.train.config import Train
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer

DATA = Recall(pairs=8, gap=64, keys=32, values=16, near=0.5)
WINDOW = 32
"""Tokens of the local window; two layers of it reach 62 back, the gap is 64."""
TABLE = RelativeEmbedding(max_distance=WINDOW)


class RecallExperiment(Experiment):
    """Two layers, the second with the mechanism; local alone must stay at chance, 1/16.

    Half of what is trained on has its pairs within the window, or the memory, which no gradient
    reaches, would never learn what to look for; what is measured has them all beyond it.
    """

    def variants(self) -> dict[str, Train]:
        local = Attention(heads=4, position=TABLE, pattern=Local(WINDOW))
        mechanisms: dict[str, MixerConfig] = {
            "local": local,
            "routing": Routing(
                heads=4, local_heads=1, clusters=8, window=WINDOW, position=NoPosition()
            ),
            "memory": Memorizing(
                heads=4, position=TABLE, window=WINDOW, memory=DATA.length, top_k=8
            ),
            "full": Attention(heads=4, position=TABLE),
        }
        return {name: _config((local, mixer)) for name, mixer in mechanisms.items()}

    def measure(self, trained: Trained) -> dict[str, float]:
        return dict(Accuracy(split="test").run(trained))  # pyright: ignore


def _config(mixer: tuple[MixerConfig, ...]) -> Train:
    return Train(
        data=DATA,
        model=Transformer(layers=len(mixer), model=64, hidden=128, mixer=mixer, dropout=0.0),
        optimizer=AdamW(learning_rate=2e-3, warmup=100, weight_decay=0.01),
        steps=4000,
        batch=32,
        window=DATA.length,
        save_every=500,
        log_every=100,
    )
