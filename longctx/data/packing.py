"""Several documents per row: little padding, and no target that belongs to another document."""

from dataclasses import dataclass
from functools import partial

import grain
import grain.experimental
import numpy as np
from jaxtyping import Int

from longctx.data.base import WrappedData, refuse_wrapped
from longctx.data.batch import Batch
from longctx.data.coordinates import coordinates_of
from longctx.data.vocabulary import Vocabulary
from longctx.data.windows import Sequences, bounded_part

ROWS_AT_ONCE = 128
"""Rows that are open while packing: the more, the less padding."""


def cut(
    sequences: Sequences, vocabulary: Vocabulary, window: int
) -> Int[np.ndarray, "pieces start_stop"]:
    """Return rows (document, start, stop): the predictions of each document in windows.

    Prediction i of a document is that of its token i, the last one that of the boundary after it.
    Pieces begin with whole steps.

    Raises:
        ValueError: the window is shorter than a step.
    """
    length = window - window % vocabulary.stride
    if not length:
        raise ValueError(
            f"the window of {window} tokens is shorter than a step of {vocabulary.stride}; widen it"
        )
    pieces = [
        (number, start, min(start + length, len(sequence) + 1))
        for number, sequence in enumerate(sequences)
        for start in range(0, len(sequence) + 1, length)
    ]
    return np.asarray(pieces, np.int64).reshape(-1, 3)


def packed_batches(
    sequences: Sequences, vocabulary: Vocabulary, window: int, batch: int, seed: int
) -> grain.DatasetIterator:
    """Return an endless iterator of `Batch` with several documents per row, told by `segments`.

    Documents longer than the window are cut into pieces. Each epoch visits every piece once, in a
    new order, and puts it into the first of the open rows that has room. The iterator's state is
    small and restores the exact place.

    Raises:
        ValueError: there is no document, or the window is shorter than a step.
    """
    if not sequences:
        raise ValueError("the training split holds no document; check the data config")

    pieces = cut(sequences, vocabulary, window)

    def load(piece: int) -> dict[str, np.ndarray]:
        number, start, stop = pieces[piece].tolist()
        part = bounded_part(sequences[number], vocabulary.boundary, start, stop + 1)
        return {"tokens": part[:-1], "targets": part[1:]}

    order = grain.MapDataset.range(len(pieces)).seed(seed).shuffle().repeat()
    loaded = order.map(load).to_iter_dataset(
        grain.ReadOptions(num_threads=1, prefetch_buffer_size=8)
    )
    rows = grain.experimental.FirstFitPackIterDataset(
        loaded,
        length_struct={"tokens": window, "targets": window},
        num_packing_bins=ROWS_AT_ONCE,
        seed=seed,
    )
    return iter(rows.map(partial(_row, vocabulary)).batch(batch))


def _row(vocabulary: Vocabulary, packed: dict[str, np.ndarray]) -> Batch:
    segments = packed["tokens_segment_ids"] - 1
    weights = (segments >= 0).astype(np.float32)
    tokens, positions = packed["tokens"], packed["tokens_positions"]
    coordinates = coordinates_of(vocabulary, tokens, positions)
    return Batch(tokens, packed["targets"], weights, segments, coordinates)


@dataclass(frozen=True)
class Packed(WrappedData):
    """A data set trained on in rows of several documents; evaluation is as ever."""

    def __post_init__(self):
        refuse_wrapped(self)

    def training_batches(self, window: int, batch: int, seed: int) -> grain.DatasetIterator:
        """Return `packed_batches` of the training split."""
        return packed_batches(
            self.data.sequences("train"), self.data.vocabulary(), window, batch, seed
        )
