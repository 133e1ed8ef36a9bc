"""From pieces to fixed windows: random crops to train on, and each token once to evaluate on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grain
import numpy as np
from jaxtyping import Int

from longctx.data.batch import Batch
from longctx.data.coordinates import coordinates_of
from longctx.data.vocabulary import Vocabulary

Sequences = Sequence[Int[np.ndarray, " _"]]


def bounded(sequence: Int[np.ndarray, " len"], boundary: int) -> Int[np.ndarray, " longer"]:
    """Return a piece between two boundary tokens: the first asks for it, the last ends it."""
    return np.concatenate([[boundary], sequence, [boundary]]).astype(np.int32)


def bounded_part(
    sequence: Int[np.ndarray, " len"], boundary: int, start: int, stop: int
) -> Int[np.ndarray, " part"]:
    """Return `bounded(sequence, boundary)[start:stop]` without copying the rest."""
    before = np.full(int(start == 0), boundary, np.int32)
    after = np.full(int(stop >= len(sequence) + 2), boundary, np.int32)
    return np.concatenate([before, sequence[max(start - 1, 0) : stop - 1], after]).astype(np.int32)


def _window(
    piece: np.ndarray,
    start: int,
    length: int,
    vocabulary: Vocabulary,
    weights: np.ndarray | None = None,
) -> Batch:
    """Return inputs and targets of one window, padded with weight 0."""
    part = piece[start : start + length + 1]
    count = len(part) - 1
    pad = (0, length - count)
    tokens = np.pad(part[:-1], pad)
    return Batch(
        tokens=tokens,
        targets=np.pad(part[1:], pad),
        weights=np.pad(np.ones(count, np.float32) if weights is None else weights, pad),
        coordinates=coordinates_of(vocabulary, tokens, start + np.arange(length)),
    )


def _stack(rows: list[Batch]) -> Batch:
    parts = zip(*rows, strict=True)
    return Batch(*(None if part[0] is None else np.stack(part) for part in parts))  # pyright: ignore


@dataclass(frozen=True)
class RandomCrop(grain.transforms.RandomMap):
    """Cuts a window of `length` predictions out of a piece, starting at a whole step.

    The place is drawn as if windows could hang over both ends, and those that would are pushed
    inside. So a piece's first tokens and its end are seen about as often as its middle.
    """

    length: int
    vocabulary: Vocabulary

    def random_map(self, element: np.ndarray, rng: np.random.Generator) -> Batch:
        stride = self.vocabulary.stride
        piece = bounded(element, self.vocabulary.boundary)
        spare = max(0, len(piece) - 1 - self.length)
        last, over = -(-spare // stride), self.length // stride
        start = min(max(int(rng.integers(-over, last + over + 1)), 0), last) * stride
        return _window(piece, start, self.length, self.vocabulary)


def training_batches(
    sequences: Sequences, vocabulary: Vocabulary, window: int, batch: int, seed: int
) -> grain.DatasetIterator:
    """Return an endless iterator of `Batch` in an order that `seed` alone decides.

    Each epoch visits every piece once, in a new order, with new crops. The iterator's state is
    small and restores the exact place.

    Raises:
        ValueError: there is no piece.
    """
    if not sequences:
        raise ValueError("the training split holds no piece; check the data config")
    crop = RandomCrop(window, vocabulary)
    dataset = grain.MapDataset.source(sequences).seed(seed).shuffle().repeat()
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=8 * batch)
    return iter(dataset.random_map(crop).to_iter_dataset(options).batch(batch))


def evaluation_batches(
    sequences: Sequences, vocabulary: Vocabulary, window: int, stride: int, batch: int
) -> Iterator[Batch]:
    """Yield batches in which every token of every piece is scored exactly once.

    Windows advance by `stride`; all but the first of a piece score only their last `stride`
    targets, which so have at least `window - stride` tokens of context. The boundary after a piece
    is not scored (weight 0): likelihoods are per note token. The last batch is filled up with
    empty windows, so that all have one shape.

    Raises:
        ValueError: `stride` does not lie in [1, window].
    """
    if not 1 <= stride <= window:
        raise ValueError(f"stride must lie between 1 and the window {window}, not {stride}")
    rows: list[Batch] = []
    empty = _window(np.zeros(1, np.int32), 0, window, vocabulary)
    for sequence in sequences:
        piece = bounded(sequence, vocabulary.boundary)
        scored = 0
        while scored < len(sequence):
            start = max(0, min(scored, scored + stride - window) if scored else 0)
            end = min(len(sequence), start + window)
            weights = np.zeros(min(window, len(piece) - 1 - start), np.float32)
            weights[scored - start : end - start] = 1.0
            rows.append(_window(piece, start, window, vocabulary, weights))
            scored = end
            if len(rows) == batch:
                yield _stack(rows)
                rows = []
    if rows:
        rows += [empty] * (batch - len(rows))
        yield _stack(rows)
