"""The embedded data set: Bach's chorales, rebuilt from music21's corpus by `build_chorales`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from jaxtyping import Int32

from longctx.data.base import SPLITS, DataConfig, Split
from music.chorale import Chorale
from music.tokenizers.chorale_grid import ChoraleGrid

FILE = "chorales.npz"


def load_chorales(split: Split) -> tuple[Chorale, ...]:
    """Return the chorales of one split in order of BWV number; their arrays are read-only.

    Raises:
        ValueError: there is no such split.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; wanted one of {', '.join(SPLITS)}")
    return _embedded()[split]


@lru_cache(maxsize=1)
def _embedded() -> dict[Split, tuple[Chorale, ...]]:
    with files("music").joinpath(FILE).open("rb") as file, np.load(file) as arrays:
        return unpack(dict(arrays))


def pack(pieces: Mapping[Split, Sequence[Chorale]]) -> dict[str, np.ndarray]:
    """Return the arrays of the embedded file: all pieces end to end, one row of facts per piece.

    Every chorale must know its fermatas and key.
    """
    rows = [(split, chorale) for split in SPLITS for chorale in pieces[split]]
    chorales = [chorale for _, chorale in rows]
    return {
        "split": np.array([split for split, _ in rows]),
        "name": np.array([c.name for c in chorales]),
        "steps": np.array([c.steps for c in chorales], np.int16),
        "tonic": np.array([c.tonic for c in chorales], np.int8),
        "minor": np.array([c.minor for c in chorales], np.bool_),
        "meter": np.array([c.meter for c in chorales], np.int8),
        "pickup": np.array([c.pickup for c in chorales], np.int8),
        "pitch": np.concatenate([c.pitch for c in chorales]).T.copy(),
        "onset": np.packbits(np.concatenate([c.onset for c in chorales]).T, axis=1),
        "fermata": np.packbits(np.concatenate([_known(c.fermata) for c in chorales])),
    }


def unpack(arrays: dict[str, np.ndarray]) -> dict[Split, tuple[Chorale, ...]]:
    """Return the chorales that `pack` packed, by split, with read-only arrays."""
    total = int(arrays["steps"].sum())
    pitch = arrays["pitch"].T
    onset = np.unpackbits(arrays["onset"], axis=1, count=total).astype(np.bool_).T
    fermata = np.unpackbits(arrays["fermata"], count=total).astype(np.bool_)
    for array in (pitch, onset, fermata):
        array.setflags(write=False)
    ends = np.cumsum(arrays["steps"], dtype=np.int64).tolist()
    pieces: dict[Split, list[Chorale]] = {split: [] for split in SPLITS}
    for row, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        facts: dict[str, Any] = {
            key: arrays[key][row].item() for key in ("tonic", "minor", "pickup", "name")
        }
        chorale = Chorale(
            pitch[start:end],
            onset[start:end],
            fermata[start:end],
            meter=tuple(arrays["meter"][row].tolist()),
            **facts,
        )
        pieces[arrays["split"][row].item()].append(chorale)
    return {split: tuple(chorales) for split, chorales in pieces.items()}


def _known(fermata: np.ndarray | None) -> np.ndarray:
    if fermata is None:
        raise ValueError("a chorale to pack has no fermata array; wanted one Boolean per step")
    return fermata


@dataclass(frozen=True)
class Chorales(DataConfig):
    """The embedded chorales on the four-voice grid; needs no download."""

    held: bool = False
    """Tell held notes from repeated ones, by a token of its own."""

    def vocabulary(self) -> ChoraleGrid:
        """Return the chorale grid, 48 tokens, or 49 with `held`."""
        return ChoraleGrid(held=self.held)

    def sequences(self, split: Split) -> tuple[Int32[np.ndarray, " len"], ...]:
        """Return the encoded chorales of one split in order of BWV number.

        Raises:
            ValueError: there is no such split.
        """
        vocabulary = self.vocabulary()
        return tuple(vocabulary.encode(chorale) for chorale in load_chorales(split))
