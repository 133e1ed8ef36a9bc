"""Likelihood of whole documents, read in chunks by what carries a state from one to the next."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float

from longctx.data.base import Split
from longctx.data.batch import Batch
from longctx.data.coordinates import coordinates_of
from longctx.data.windows import bounded
from longctx.evaluator import Evaluator, Trained
from longctx.train.step import token_losses


@dataclass(frozen=True)
class StreamedLikelihood(Evaluator):
    """Nats per token where each layer keeps between chunks what it keeps in training.

    The truncation delta is what forgetting everything between chunks costs: the same tokens with
    less context. It is 0 for layers that keep nothing.
    """

    split: Split = "valid"
    """Which pieces."""
    chunk: int | None = None
    """Tokens read at once; None is the training window."""
    batch: int = 8
    """Documents at once."""
    longest: int = 8192
    """Tokens of a document that are read at most."""
    edges: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    """Where the intervals of positions end, for the loss by position."""

    def run(self, trained: Trained) -> Iterator[tuple[str, float]]:
        """Yield the loss with and without what is carried, their difference, and by position."""
        carried = np.concatenate(list(self.documents(trained, carry=True)))
        apart = np.concatenate(list(self.documents(trained, carry=False)))
        name = f"{self.split}/streamed"
        yield f"{name}_nll", float(carried.mean())
        yield f"{name}_nll_apart", float(apart.mean())
        yield f"{name}_truncation_delta", float(apart.mean() - carried.mean())
        lengths = [len(d) for d in self._pieces(trained)]
        places = np.concatenate([np.arange(length) for length in lengths])
        for first, last in zip((0, *self.edges), (*self.edges, self.longest), strict=True):
            inside = (places >= first) & (places < last)
            if inside.any():
                yield f"{name}_nll_from_{first}", float(carried[inside].mean())

    def documents(self, trained: Trained, carry: bool) -> Iterator[Float[np.ndarray, " len"]]:
        """Yield each document's losses (nats); without `carry` every chunk stands alone."""
        chunk = trained.window if self.chunk is None else self.chunk
        pieces = self._pieces(trained)
        boundary = trained.data.vocabulary().boundary
        empty = jax.jit(partial(_empty, trained.graphdef, self.batch))(trained.params)
        for start in range(0, len(pieces), self.batch):
            group = [bounded(piece, boundary)[:-1] for piece in pieces[start : start + self.batch]]
            parts, state = [], empty
            for first in range(0, max(map(len, group)) - 1, chunk):
                batch = self._chunk(trained, group, first, chunk)
                losses, after = _losses(trained.graphdef, trained.params, batch, state)
                parts.append(np.asarray(losses))
                state = after if carry else empty
            losses = np.concatenate(parts, axis=1)
            yield from (row[: len(piece) - 1] for row, piece in zip(losses, group, strict=False))

    def _pieces(self, trained: Trained) -> list[np.ndarray]:
        """Return the pieces, longest first, so that documents of a group are of a length."""
        found = [s[: self.longest] for s in trained.data.sequences(self.split) if len(s)]
        if not found:
            raise ValueError(f"the {self.split} split holds no token to score")
        return sorted(found, key=len, reverse=True)

    def _chunk(self, trained: Trained, group: list[np.ndarray], first: int, chunk: int) -> Batch:
        """Return the next tokens of each document; rows that are over are padding."""
        rows = np.zeros((self.batch, chunk + 1), np.int32)
        segments = np.full((self.batch, chunk), -1, np.int32)
        for number, piece in enumerate(group):
            part = piece[first : first + chunk + 1]
            rows[number, : len(part)] = part
            segments[number, : max(0, len(part) - 1)] = 0
        places = np.broadcast_to(first + np.arange(chunk), segments.shape)
        coordinates = coordinates_of(trained.data.vocabulary(), rows[:, :-1], places)
        weights = (segments >= 0).astype(np.float32)
        return Batch(rows[:, :-1], rows[:, 1:], weights, segments, coordinates)


def _empty(graphdef: nnx.GraphDef, batch: int, params: nnx.State) -> Any:
    return nnx.merge(graphdef, params).training_state(batch)


@partial(jax.jit, static_argnums=0)
def _losses(
    graphdef: nnx.GraphDef, params: nnx.State, batch: Batch, state: Any
) -> tuple[Array, Any]:
    return token_losses(nnx.merge(graphdef, params), batch, state=state)
