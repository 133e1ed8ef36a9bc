"""Masked language modelling for encoders (BERT, Devlin et al. 2019, section 3.1)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import grain
import numpy as np
from jaxtyping import Int

from longctx.data.base import Split, WrappedData
from longctx.data.batch import Batch
from longctx.data.vocabulary import Vocabulary

MASK = "<mask>"


@dataclass(frozen=True)
class WithMask:
    """A vocabulary with one more token, the last, which hides another."""

    vocabulary: Vocabulary

    boundary: ClassVar[int] = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the vocabulary, and that of the mask."""
        return (*self.vocabulary.names, MASK)

    @property
    def stride(self) -> int:
        """That of the vocabulary."""
        return self.vocabulary.stride

    @property
    def mask(self) -> int:
        """The token that hides another."""
        return len(self.vocabulary.names)

    def encode(self, piece: Any) -> Int[np.ndarray, " len"]:
        """Return the tokens of a piece; none is the mask."""
        return self.vocabulary.encode(piece)

    def decode(self, tokens: Int[np.ndarray, " len"]) -> Any:
        """Return the piece that tokens spell.

        Raises:
            ValueError: a token is the mask, which spells nothing, or outside the vocabulary.
        """
        places = np.flatnonzero(np.asarray(tokens) == self.mask)
        if places.size:
            raise ValueError(
                f"the token at place {places[0]} is {MASK}, which spells nothing; fill it in first"
            )
        return self.vocabulary.decode(tokens)


def hide(batch: Batch, vocabulary: WithMask, share: float, rng: np.random.Generator) -> Batch:
    """Return a batch that asks for the tokens at a share of the places it predicted.

    The input is what was to be predicted. Of the chosen places 80 % show the mask, 10 % a random
    token and 10 % the true one; only they have weight. Boundaries are padding here, as are tokens
    after the last that is scored. Coordinates would tell what is hidden, so none are given.
    """
    targets = batch.targets
    if batch.segments is None:
        scored_later = np.flip(np.maximum.accumulate(np.flip(batch.weights, 1), axis=1), 1) > 0
        segments = np.where(scored_later, 0, -1)
    else:
        segments = batch.segments
    segments = np.where(targets == vocabulary.boundary, -1, segments).astype(np.int32)
    chosen = (rng.random(targets.shape) < share) & (batch.weights > 0) & (segments >= 0)
    fate = rng.random(targets.shape)
    random = rng.integers(1, vocabulary.mask, targets.shape)
    shown = np.where(fate < 0.8, vocabulary.mask, np.where(fate < 0.9, random, targets))
    tokens = np.where(chosen, shown, targets).astype(np.int32)
    weights = chosen.astype(np.float32)
    return batch._replace(tokens=tokens, weights=weights, segments=segments, coordinates=None)


class _Hidden(grain.DatasetIterator):
    def __init__(self, parent: grain.DatasetIterator, data: "Masked", seed: int):
        super().__init__(parent)
        self._data, self._seed, self._count = data, seed, 0
        self._vocabulary = data.vocabulary()

    def __next__(self) -> Batch:
        rng = np.random.default_rng([self._seed, self._count])
        self._count += 1
        return hide(next(self._parent), self._vocabulary, self._data.share, rng)

    def get_state(self) -> dict[str, Any]:
        return {"parent": self._parent.get_state(), "count": self._count}

    def set_state(self, state: dict[str, Any]) -> None:
        self._parent.set_state(state["parent"])
        self._count = state["count"]


@dataclass(frozen=True)
class Masked(WrappedData):
    """A data set for encoders: tokens to fill in instead of tokens to go on with."""

    share: float = 0.15
    """The share of the tokens that is asked for."""

    def __post_init__(self):
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share}; wanted more than 0 and at most 1")

    @property
    def given(self) -> None:
        """All that is shown."""
        return None

    def vocabulary(self) -> WithMask:
        """Return the vocabulary with the mask."""
        return WithMask(self.data.vocabulary())

    def training_batches(self, window: int, batch: int, seed: int) -> grain.DatasetIterator:
        """Return the batches of the data with tokens hidden anew in each epoch."""
        return _Hidden(self.data.training_batches(window, batch, seed), self, seed)

    def evaluation_batches(
        self, split: Split, window: int, stride: int, batch: int
    ) -> Iterator[Batch]:
        """Yield the batches of the data with the same tokens hidden every time."""
        plain = self.data.evaluation_batches(split, window, stride, batch)
        for number, shown in enumerate(plain):
            rng = np.random.default_rng(number)
            yield hide(shown, self.vocabulary(), self.share, rng)
