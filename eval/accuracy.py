"""Accuracy: how often the most likely token is the one that was asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from kernels.attention.places import Places
from longctx.data.base import Split
from longctx.data.batch import Batch
from longctx.evaluator import Evaluator, Trained


@dataclass(frozen=True)
class Accuracy(Evaluator):
    """The share of the scored tokens of a split that the model holds for the most likely."""

    split: Split = "valid"
    """Which pieces."""
    batch: int = 32
    """Windows at once."""

    def run(self, trained: Trained) -> Iterator[tuple[str, float]]:
        """Yield `("SPLIT/accuracy", share)`."""
        right = total = 0.0
        window = trained.window
        for batch in trained.data.evaluation_batches(self.split, window, window, self.batch):
            right += float(_right(trained.graphdef, trained.params, batch))
            total += float(batch.weights.sum())
        if not total:
            raise ValueError(f"the {self.split} split holds no token to score")
        yield f"{self.split}/accuracy", right / total


@partial(jax.jit, static_argnums=0)
def _right(graphdef: nnx.GraphDef, params: nnx.State, batch: Batch) -> Array:
    at = Places(None, batch.segments, batch.coordinates)  # pyright: ignore
    logits, _ = nnx.merge(graphdef, params)(batch.tokens, jax.tree.map(jnp.asarray, at))
    return (batch.weights * (logits.argmax(axis=-1) == batch.targets)).sum()
