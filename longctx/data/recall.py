"""Associative recall at a distance: pairs, then noise, then keys whose values are asked for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import grain
import numpy as np
from jaxtyping import Int

from longctx.data.base import SPLITS, DataConfig, Split
from longctx.data.batch import Batch

HELD_OUT = 256
"""Sequences in each split that is evaluated."""


@dataclass(frozen=True)
class Symbols:
    """The boundary, keys, values and noise: tokens that spell themselves."""

    keys: int
    values: int
    noise: int

    boundary: ClassVar[int] = 0
    stride: ClassVar[int] = 1

    @property
    def names(self) -> tuple[str, ...]:
        """The boundary, then `key 0`, ..., `value 0`, ..., `noise 0`, ..."""
        kinds = (("key", self.keys), ("value", self.values), ("noise", self.noise))
        return ("boundary", *(f"{kind} {n}" for kind, count in kinds for n in range(count)))

    def encode(self, piece: Sequence[int]) -> Int[np.ndarray, " len"]:
        """Return the tokens themselves."""
        return np.asarray(piece, np.int32)

    def decode(self, tokens: Int[np.ndarray, " len"]) -> list[int]:
        """Return the tokens themselves."""
        return [int(token) for token in tokens]


@dataclass(frozen=True)
class Recall(DataConfig):
    """Sequences `k1 v1 k2 v2 ... noise ... ki vi kj vj ...` in which the second values are scored.

    Every key of a sequence is another one, and every pair is asked for once, in a new order. From
    a value to its question there are more than `gap` tokens: what sees less is at chance, which
    is `1 / values` (Graves et al. 2014, section 4.3; Arora et al. 2023).
    """

    pairs: int = 8
    """Pairs to keep in mind."""
    gap: int = 128
    """Tokens of noise between the pairs and the questions."""
    keys: int = 32
    """Keys to draw from."""
    values: int = 16
    """Values to draw from."""
    near: float = 0.0
    """The share of training sequences whose noise stands before the pairs, so that no gap is left.

    What a memory retrieves gets no gradient, so that what to ask for, and how to be found, has to
    be learned where local attention sees both (Wu et al. 2022, section 3.2).
    """

    def __post_init__(self):
        if not 1 <= self.pairs <= self.keys:
            raise ValueError(f"{self.pairs} pairs need as many keys of {self.keys}, and at least 1")
        if self.gap < 0 or self.values < 1:
            raise ValueError(f"gap {self.gap} and values {self.values} must not be so small")
        if not 0.0 <= self.near <= 1.0:
            raise ValueError(f"near is a share from 0 to 1, not {self.near}")

    @property
    def length(self) -> int:
        """Tokens of a sequence, without boundaries."""
        return 4 * self.pairs + self.gap

    def vocabulary(self) -> Symbols:
        """Return the symbols; there is as much noise as there are keys."""
        return Symbols(self.keys, self.values, self.keys)

    def sequences(self, split: Split) -> tuple[Int[np.ndarray, " len"], ...]:
        """Return the fixed sequences of a split; those of training are drawn anew each time."""
        if split not in SPLITS:
            raise ValueError(f"split is {split!r}; wanted one of {', '.join(SPLITS)}")
        return _held_out(self, split)

    def training_batches(self, window: int, batch: int, seed: int) -> grain.DatasetIterator:
        """Return an endless iterator of new sequences.

        Raises:
            ValueError: the window is not a sequence's length.
        """
        self._require(window)
        drawn = grain.MapDataset.range(1).seed(seed).repeat().random_map(_Drawn(self))
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=4 * batch)
        return iter(drawn.to_iter_dataset(options).batch(batch))

    def evaluation_batches(
        self, split: Split, window: int, stride: int, batch: int
    ) -> Iterator[Batch]:
        """Yield each sequence of a split once; `stride` has no meaning here.

        Raises:
            ValueError: the window is not a sequence's length, or the batch leaves a rest.
        """
        self._require(window)
        sequences = self.sequences(split)
        if len(sequences) % batch:
            raise ValueError(f"a batch of {batch} leaves a rest of {len(sequences)} sequences")
        for start in range(0, len(sequences), batch):
            rows = [self.row(sequence) for sequence in sequences[start : start + batch]]
            yield Batch(*(np.stack(part) for part in zip(*rows, strict=True)))

    def draw(self, rng: np.random.Generator, near: bool = False) -> Int[np.ndarray, " len"]:
        """Return a sequence; the pairs of a `near` one stand right before the questions."""
        keys = 1 + rng.choice(self.keys, self.pairs, replace=False)
        values = 1 + self.keys + rng.integers(0, self.values, self.pairs)
        noise = 1 + self.keys + self.values + rng.integers(0, self.keys, self.gap)
        order = rng.permutation(self.pairs)
        told = np.stack([keys, values], axis=1)
        before = (noise, told.ravel()) if near else (told.ravel(), noise)
        return np.concatenate([*before, told[order].ravel()]).astype(np.int32)

    def row(self, sequence: Int[np.ndarray, " len"]) -> tuple[np.ndarray, ...]:
        """Return the tokens, targets and weights of a sequence."""
        place = np.arange(self.length)
        first = 2 * self.pairs + self.gap
        asked = (place >= first) & ((place - first) % 2 == 1)
        return np.pad(sequence, (1, 0))[:-1], sequence, asked.astype(np.float32)

    def _require(self, window: int) -> None:
        if window != self.length:
            raise ValueError(
                f"the window is {window} tokens, but a sequence has {self.length} "
                f"(4 * {self.pairs} pairs + {self.gap}): set window={self.length}"
            )


@dataclass(frozen=True)
class _Drawn(grain.transforms.RandomMap):
    data: Recall

    def random_map(self, element: int, rng: np.random.Generator) -> Batch:
        near = bool(rng.random() < self.data.near)
        return Batch(*self.data.row(self.data.draw(rng, near)))


@lru_cache(maxsize=8)
def _held_out(data: Recall, split: Split) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([17, SPLITS.index(split)])
    return tuple(data.draw(rng) for _ in range(HELD_OUT))
