"""What a data set owes to training and evaluation: a vocabulary, pieces of tokens, and batches."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import grain
import numpy as np
from jaxtyping import Int

from longctx.data.batch import Batch
from longctx.data.vocabulary import Vocabulary
from longctx.data.windows import evaluation_batches, training_batches

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")


@dataclass(frozen=True)
class DataConfig(ABC):
    """A data set: which pieces, in which split, spelled in which vocabulary."""

    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary that `sequences` are spelled in."""

    @abstractmethod
    def sequences(self, split: Split) -> Sequence[Int[np.ndarray, " _"]]:
        """Return the encoded pieces of one split, without boundaries, in a fixed order."""

    @property
    def given(self) -> int | None:
        """How many first tokens of a window are given and not scored.

        None if tokens are filled in where they stand, so that all that is shown may be seen.
        """
        return 0

    @property
    def continuous(self) -> bool:
        """Whether a row of a batch goes on where that of the last one ended."""
        return False

    def manifest(self) -> dict[str, str]:
        """Return what tells these data from others of the same config: versions, hashes."""
        return {}

    def training_batches(self, window: int, batch: int, seed: int) -> grain.DatasetIterator:
        """Return an endless iterator of `Batch`, here of random crops, whose state restores.

        Raises:
            ValueError: the training split is empty.
        """
        return training_batches(self.sequences("train"), self.vocabulary(), window, batch, seed)

    def evaluation_batches(
        self, split: Split, window: int, stride: int, batch: int
    ) -> Iterator[Batch]:
        """Yield batches that score every token of a split exactly once, the same every time.

        Raises:
            ValueError: `stride` does not lie in [1, window].
        """
        return evaluation_batches(self.sequences(split), self.vocabulary(), window, stride, batch)


@dataclass(frozen=True)
class WrappedData(DataConfig):
    """A data set whose batches are made in another way."""

    data: DataConfig
    """Where the pieces come from."""

    def vocabulary(self) -> Vocabulary:
        """Return that of the data."""
        return self.data.vocabulary()

    def sequences(self, split: Split) -> Sequence[Int[np.ndarray, " _"]]:
        """Return those of the data."""
        return self.data.sequences(split)

    @property
    def given(self) -> int | None:
        """That of the data."""
        return self.data.given

    @property
    def continuous(self) -> bool:
        """That of the data."""
        return self.data.continuous

    def manifest(self) -> dict[str, str]:
        """Return that of the data."""
        return self.data.manifest()


def refuse_wrapped(wrapper: WrappedData) -> None:
    """Check that a wrapper that cuts its own rows has no other inside, whose work would be lost.

    Raises:
        ValueError: it has.
    """
    inner = wrapper.data
    if isinstance(inner, WrappedData):
        ours, theirs = type(wrapper).__name__, type(inner).__name__
        raise ValueError(
            f"{ours} cuts rows anew, which undoes {theirs}: write {theirs}({ours}(...))"
        )


def data_hash(data: DataConfig, split: Split) -> str:
    """Return 16 hex digits of the tokens of one split: equal digits, equal data."""
    digest = hashlib.sha256()
    for sequence in data.sequences(split):
        digest.update(np.asarray([len(sequence)], np.int64).tobytes())
        digest.update(np.ascontiguousarray(sequence, np.int32).tobytes())
    return digest.hexdigest()[:16]
