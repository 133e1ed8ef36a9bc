"""A four-part piece on a grid of sixteenth notes: what everything in `music` speaks of."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int8

VOICES = ("soprano", "alto", "tenor", "bass")
STEPS_PER_QUARTER = 4
REST = -1

_PITCH_CLASSES = ("C", "C#", "D", "D#", "E", "F", "F#", "G", "G#", "A", "A#", "B")


class Note(NamedTuple):
    """One sounding note of one voice: steps `start` to `end` (exclusive) and its MIDI pitch."""

    start: int
    end: int
    pitch: int


@dataclass(frozen=True, eq=False)
class Chorale:
    """Four voices, one column each (soprano, alto, tenor, bass), one row per sixteenth note.

    A step of a voice begins a note (`onset`), sounds one on (a pitch without onset, equal to the
    step before) or rests. Zero steps are allowed: the empty piece.

    Raises:
        ValueError: a field has another type or shape, a pitch or fact out of range, a rest that
            begins, or a pitch that changes without an onset; the text says what and where.
    """

    pitch: Int8[np.ndarray, "steps 4"]
    """MIDI pitches 0 to 127, or -1 for a rest."""
    onset: Bool[np.ndarray, "steps 4"]
    """True where a voice strikes a note, repeated or new."""
    fermata: Bool[np.ndarray, " steps"] | None = None
    """True while the soprano sounds a note under a fermata; None: unknown."""
    tonic: int | None = None
    """Pitch class of the key, 0 (C) to 11 (B); None: unknown."""
    minor: bool | None = None
    """Whether the key is minor; None: unknown."""
    meter: tuple[int, int] = (4, 4)
    """The (first) time signature; the bar must be a whole number of sixteenths."""
    pickup: int = 0
    """Sixteenths before the first bar line; 0: the piece begins with a full bar."""
    name: str = ""
    """What to call the piece, such as `bwv66.6`."""

    def __post_init__(self) -> None:
        _check_array("pitch", self.pitch, np.int8, (len(self.pitch), len(VOICES)))
        _check_array("onset", self.onset, np.bool_, self.pitch.shape)
        if self.fermata is not None:
            _check_array("fermata", self.fermata, np.bool_, self.pitch.shape[:1])
        self._check_notes()
        self._check_facts()

    @property
    def steps(self) -> int:
        """The length in sixteenth notes."""
        return len(self.pitch)

    @property
    def bar(self) -> int:
        """The length of a bar in sixteenth notes."""
        return self.meter[0] * 16 // self.meter[1]

    def notes(self, voice: int) -> list[Note]:
        """Return the notes of one voice (0 soprano to 3 bass) in order."""
        starts = np.flatnonzero(self.onset[:, voice])
        breaks = np.flatnonzero(self.onset[:, voice] | (self.pitch[:, voice] == REST))
        breaks = np.append(breaks, self.steps)
        ends = breaks[np.searchsorted(breaks, starts, side="right")]
        pitches = self.pitch[starts, voice]
        return [
            Note(*n) for n in zip(starts.tolist(), ends.tolist(), pitches.tolist(), strict=True)
        ]

    def _check_notes(self) -> None:
        low = self.pitch < REST
        rest_begins = self.onset & (self.pitch == REST)
        unstruck = (self.pitch != REST) & ~self.onset & (self.pitch != previous_step(self.pitch))
        for wrong, text in (
            (low, "a pitch below -1; pitches are 0 to 127, and -1 for a rest"),
            (rest_begins, "an onset on a rest; set onset to False where pitch is -1"),
            (unstruck, "a new pitch without an onset; set onset to True where a note begins"),
        ):
            if wrong.any():
                step, voice = np.argwhere(wrong)[0].tolist()
                raise ValueError(f"{self._who()}: step {step} of the {VOICES[voice]} has {text}")

    def _check_facts(self) -> None:
        if self.tonic is not None and not 0 <= self.tonic <= 11:
            raise ValueError(
                f"{self._who()}: tonic is {self.tonic}; wanted 0 (C) to 11 (B) or None"
            )
        beats, unit = self.meter
        if beats < 1 or unit not in (1, 2, 4, 8, 16):
            raise ValueError(
                f"{self._who()}: meter is {beats}/{unit}; wanted at least one beat of a unit "
                "1, 2, 4, 8 or 16, so that bars fit the grid"
            )
        if not 0 <= self.pickup < self.bar:
            raise ValueError(
                f"{self._who()}: pickup is {self.pickup} sixteenths; wanted 0 to {self.bar - 1}, "
                f"less than a bar of {beats}/{unit}"
            )

    def _who(self) -> str:
        return f"chorale {self.name!r}" if self.name else "chorale"


def _check_array(field: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype or array.shape != shape:
        given = (
            f"{array.dtype} of shape {array.shape}"
            if isinstance(array, np.ndarray)
            else type(array).__name__
        )
        raise ValueError(f"{field} is {given}; wanted a numpy array of {np.dtype(dtype)}, {shape}")


def previous_step(pitch: Int8[np.ndarray, "steps 4"]) -> Int8[np.ndarray, "steps 4"]:
    """Return what each voice had one step earlier; before the first step, a rest."""
    return np.concatenate([np.full_like(pitch[:1], REST), pitch[:-1]])


def change_onsets(pitch: Int8[np.ndarray, "steps 4"]) -> Bool[np.ndarray, "steps 4"]:
    """Return the onsets if equal consecutive pitches are one note: True where the pitch changes."""
    return (pitch != REST) & (pitch != previous_step(pitch))


def pitch_name(pitch: int) -> str:
    """Return the name of a MIDI pitch with sharps, middle C (60) being C4."""
    return f"{_PITCH_CLASSES[pitch % 12]}{pitch // 12 - 1}"
