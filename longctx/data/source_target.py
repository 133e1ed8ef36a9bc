"""Windows for an encoder-decoder: their first tokens are its source, and are not predicted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from longctx.data.base import Split, WrappedData
from longctx.data.batch import Batch


def without_source(batch: Batch, source: int) -> Batch:
    """Return the batch with weight 0 on the first `source` tokens."""
    place = np.arange(batch.weights.shape[1])
    return batch._replace(weights=np.where(place < source, 0.0, batch.weights).astype(np.float32))


class _Targets(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, source: int):
        super().__init__(parent)
        self._source = source

    def __next__(self) -> Batch:
        return without_source(next(self._parent), self._source)

    def get_state(self) -> dict[str, Any]:
        return self._parent.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state)


@dataclass(frozen=True)
class SourceTarget(WrappedData):
    """A data set whose windows are a source and a target, of which the target is predicted."""

    source: int = 128
    """How many tokens are the source; as in the model."""

    def __post_init__(self):
        if self.source < 1:
            raise ValueError(f"source must be at least 1 token, not {self.source}")

    @property
    def given(self) -> int:
        """The source."""
        return self.source

    def training_batches(self, window: int, batch: int, seed: int) -> grain.DatasetIterator:
        """Return the batches of the data, in which the source has weight 0.

        Raises:
            ValueError: the window holds no target.
        """
        if window <= self.source:
            raise ValueError(f"a window of {window} tokens holds no target after {self.source}")
        return _Targets(self.data.training_batches(window, batch, seed), self.source)

    def evaluation_batches(
        self, split: Split, window: int, stride: int, batch: int
    ) -> Iterator[Batch]:
        """Yield batches that score every token of a split once, but a piece's first `source`.

        Raises:
            ValueError: windows advance by more than their targets.
        """
        if stride > window - self.source:
            raise ValueError(
                f"stride {stride} skips tokens: a window of {window} predicts "
                f"{window - self.source} after its source"
            )
        for scored in self.data.evaluation_batches(split, window, stride, batch):
            yield without_source(scored, self.source)
