"""Likelihood: nats per token, each token scored once, boundaries left out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import jax
from flax import nnx
from jax import Array

from longctx.data.base import Split, data_hash
from longctx.data.batch import Batch
from longctx.data.tokenizers.base import Tokenizer
from longctx.data.vocabulary import vocabulary_hash
from longctx.evaluator import Evaluator, Trained
from longctx.train.step import summed_loss

NOT_CAUSAL = "NOT CAUSAL: later tokens decide which earlier ones are seen"


@dataclass(frozen=True)
class Likelihood(Evaluator):
    """Mean negative log-likelihood in nats per token of one split."""

    split: Split = "valid"
    """Which pieces."""
    window: int | None = None
    """Tokens that the model sees at most; None is the training window."""
    stride: int | None = None
    """Tokens that a window advances: all but a piece's first tokens have at least window - stride
    tokens of context. None is half the window."""
    batch: int = 8
    """Windows at once."""

    def run(self, trained: Trained) -> Iterator[tuple[str, float]]:
        """Yield `("SPLIT/nll", nats per token)`; of text also `("SPLIT/bits_per_byte", bits)`."""
        window, stride = self.geometry(trained)
        total = weight = 0.0
        for batch in trained.data.evaluation_batches(self.split, window, stride, self.batch):
            total += float(_weighted_nll(trained.graphdef, trained.params, batch))
            weight += float(batch.weights.sum())
        if not weight:
            raise ValueError(f"the {self.split} split holds no token to score")
        yield f"{self.split}/nll", total / weight
        vocabulary = trained.data.vocabulary()
        if isinstance(vocabulary, Tokenizer) and trained.data.given == 0:
            sequences = trained.data.sequences(self.split)
            size = sum(len(vocabulary.decode(sequence).encode()) for sequence in sequences)
            yield f"{self.split}/bits_per_byte", total / math.log(2) / size

    def geometry(self, trained: Trained) -> tuple[int, int]:
        """Return (window, stride) in tokens for a model."""
        window = trained.window if self.window is None else self.window
        return window, max(1, window // 2) if self.stride is None else self.stride

    def protocol(self, trained: Trained) -> dict[str, str | int]:
        """Return what another number must share to be comparable with this one."""
        window, stride = self.geometry(trained)
        return {
            "unit": "nats per token, mean over the tokens asked for; boundary not scored",
            "split": self.split,
            "pieces": len(trained.data.sequences(self.split)),
            "tokens": sum(map(len, trained.data.sequences(self.split))),
            "data hash": data_hash(trained.data, self.split),
            "vocabulary": f"{len(trained.data.vocabulary().names)} tokens, "
            f"hash {vocabulary_hash(trained.data.vocabulary())}",
            "window": window,
            "stride": stride,
            "augmentation": "none",
        } | ({"likelihood": NOT_CAUSAL} if _selects_ahead(trained) else {})


def _selects_ahead(trained: Trained) -> bool:
    return trained.model().config.selects_ahead


@partial(jax.jit, static_argnums=0)
def _weighted_nll(graphdef: nnx.GraphDef, params: nnx.State, batch: Batch) -> Array:
    return summed_loss(graphdef, params, batch, dropout_key=None)
