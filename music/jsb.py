"""The JSB chorales on the sixteenth grid: the split that published note-wise likelihoods use."""

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int32

from longctx.data.base import SPLITS, DataConfig, Split
from music.chorale import VOICES, Chorale, change_onsets
from music.tokenizers.chorale_grid import ChoraleGrid


@dataclass(frozen=True)
class JSB(DataConfig):
    """JSB chorales from a file on disk: 229 train, 76 valid and 77 test pieces.

    The data have no onsets, so held and repeated notes are never told apart here.
    """

    path: str
    """`Jsb16thSeparated.json` or `jsb16_satb.npz`.

    The first maps each split to pieces of steps of four pitches. The second holds for each split
    `train` an array [steps, 4] of all its pieces end to end, and `train_lengths`, their steps. In
    both, -1 is a rest.
    """

    def vocabulary(self) -> ChoraleGrid:
        """Return the chorale grid of 48 tokens."""
        return ChoraleGrid()

    def sequences(self, split: Split) -> tuple[Int32[np.ndarray, " len"], ...]:
        """Return the encoded pieces of one split in the order of the file.

        Raises:
            FileNotFoundError: there is no file at `path`.
            ValueError: there is no such split, or the file holds something else.
        """
        vocabulary = self.vocabulary()
        return tuple(vocabulary.encode(chorale) for chorale in load_jsb(self.path, split))


def load_jsb(path: str | Path, split: Split) -> tuple[Chorale, ...]:
    """Return the chorales of one split, named `valid 0` and so on; equal pitches are joined.

    Raises:
        FileNotFoundError: there is no file at `path`.
        ValueError: there is no such split, or the file holds something else.
    """
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; wanted one of {', '.join(SPLITS)}")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"no JSB file at {path}; wanted Jsb16thSeparated.json or jsb16_satb.npz"
        )
    read = {".json": _read_json, ".npz": _read_npz}.get(path.suffix)
    if read is None:
        raise ValueError(f"{path} ends in {path.suffix!r}; wanted a .json or .npz file")
    pieces = read(path, split)
    return tuple(_chorale(piece, f"{split} {i}", path) for i, piece in enumerate(pieces))


def _read_json(path: Path, split: Split) -> list[np.ndarray]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [np.array(piece, np.float64) for piece in content[split]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not hold JSB: {error!r}; wanted an object that maps "
            f"{', '.join(SPLITS)} to lists of pieces, each a list of steps of four pitches"
        ) from error


def _read_npz(path: Path, split: Split) -> list[np.ndarray]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            steps, lengths = arrays[split], arrays[f"{split}_lengths"]
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} does not hold JSB: {error!r}; wanted the arrays `{split}` [steps, 4] and "
            f"`{split}_lengths`, without pickled objects"
        ) from error
    if lengths.ndim != 1 or lengths.sum() != len(steps):
        raise ValueError(
            f"{path} does not hold JSB: `{split}_lengths` adds up to {lengths.sum()}; wanted the "
            f"{len(steps)} steps of `{split}`"
        )
    return np.split(steps, np.cumsum(lengths)[:-1])


def _chorale(piece: np.ndarray, name: str, path: Path) -> Chorale:
    if piece.ndim != 2 or piece.shape[1] != len(VOICES):
        raise ValueError(f"{path}: piece {name} has shape {piece.shape}; wanted [steps, 4]")
    pitch = piece.astype(np.int8)
    if (pitch != piece).any() or (pitch < -1).any():
        raise ValueError(f"{path}: piece {name} has numbers that are not pitches from -1 to 127")
    return Chorale(pitch, change_onsets(pitch), name=name)
