"""Long documents in one stretch: each row of a batch goes on where that of the last one ended."""

from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from longctx.data.base import WrappedData, refuse_wrapped
from longctx.data.batch import Batch
from longctx.data.coordinates import coordinates_of
from longctx.data.vocabulary import Vocabulary
from longctx.data.windows import Sequences, bounded_part


def streamed_batches(
    sequences: Sequences, vocabulary: Vocabulary, window: int, batch: int, seed: int
) -> grain.DatasetIterator:
    """Return an endless iterator of `Batch` whose rows continue from one batch to the next.

    A row that has come to the end of its document takes the next of an endless shuffled order, in
    which each epoch holds every document once. There is no padding. `segments` is the number of
    the document in that order: a token whose segment differs from that of the token before it,
    which may be the last one of the row in the batch before, begins a document. The state is the
    place of each row and restores exactly.

    Raises:
        ValueError: there is no document.
    """
    if not sequences:
        raise ValueError("the training split holds no document; check the data config")
    return _Streams(sequences, vocabulary, window, batch, seed)


class _Streams(grain.DatasetIterator):
    def __init__(
        self, sequences: Sequences, vocabulary: Vocabulary, window: int, batch: int, seed: int
    ):
        super().__init__()
        self._sequences, self._vocabulary, self._window = sequences, vocabulary, window
        self._order = grain.MapDataset.range(len(sequences)).seed(seed).shuffle().repeat()
        self._rows = [(number, 0) for number in range(batch)]
        self._next = batch

    def __next__(self) -> Batch:
        rows = [self._row(row) for row in range(len(self._rows))]
        tokens, targets, segments, positions = map(np.stack, zip(*rows, strict=True))
        coordinates = coordinates_of(self._vocabulary, tokens, positions)
        return Batch(tokens, targets, np.ones(tokens.shape, np.float32), segments, coordinates)

    def get_state(self) -> dict[str, Any]:
        return {"next": self._next, "rows": [list(row) for row in self._rows]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._next = state["next"]
        self._rows = [(number, place) for number, place in state["rows"]]

    def _row(self, row: int) -> tuple[np.ndarray, ...]:
        """Return the next window of a row: tokens, targets, segments, positions."""
        parts, missing = [], self._window
        while missing:
            number, start = self._rows[row]
            document: Any = self._order[number]
            sequence = self._sequences[document]
            stop = min(start + missing, len(sequence) + 1)
            part = bounded_part(sequence, self._vocabulary.boundary, start, stop + 1)
            segment = np.full(stop - start, number, np.int32)
            parts.append((part[:-1], part[1:], segment, np.arange(start, stop)))
            missing -= stop - start
            if stop <= len(sequence):
                self._rows[row] = (number, stop)
            else:
                self._rows[row] = (self._next, 0)
                self._next += 1
        return tuple(map(np.concatenate, zip(*parts, strict=True)))


@dataclass(frozen=True)
class Streamed(WrappedData):
    """A data set trained on in contiguous streams, for memories that outlive a window."""

    def __post_init__(self):
        refuse_wrapped(self)

    @property
    def continuous(self) -> bool:
        """True."""
        return True

    def training_batches(self, window: int, batch: int, seed: int) -> grain.DatasetIterator:
        """Return `streamed_batches` of the training split."""
        return streamed_batches(
            self.data.sequences("train"), self.data.vocabulary(), window, batch, seed
        )
