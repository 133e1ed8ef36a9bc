"""Chorales as one token per voice and sixteenth note, as in Music Transformer (1809.04281)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int, Int32

from longctx.data.vocabulary import of_one_piece
from music.chorale import REST, VOICES, Chorale, change_onsets, pitch_name


@dataclass(frozen=True)
class ChoraleGrid:
    """Soprano, alto, tenor, bass of the first step, then of the second, and so on.

    Tokens are the boundary (0), the rest (1) and the pitches from `lowest` to `highest`. Without
    `held`, a note that sounds on and a note struck again are spelled alike, as in the JSB
    benchmark: decoding joins equal consecutive pitches. With `held` one more token, the last, says
    that the voice's note sounds on (DeepBach, 1612.01010), and decoding returns every onset.

    Raises:
        ValueError: the range is empty or leaves 0 to 127.
    """

    lowest: int = 36
    """The lowest MIDI pitch with a token; 36 to 81 holds JSB and the embedded chorales."""
    highest: int = 81
    """The highest MIDI pitch with a token."""
    held: bool = False
    """Tell held notes from repeated ones, by a token of its own."""

    boundary: ClassVar[int] = 0
    rest: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 0 <= self.lowest <= self.highest <= 127:
            raise ValueError(
                f"pitch range is {self.lowest} to {self.highest}; wanted lowest <= highest, "
                "both 0 to 127"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """A readable name for every token, such as `C4 (60)`."""
        pitches = (f"{pitch_name(p)} ({p})" for p in range(self.lowest, self.highest + 1))
        return ("boundary", "rest", *pitches, *(("hold",) if self.held else ()))

    @property
    def stride(self) -> int:
        """Four: one token per voice."""
        return len(VOICES)

    @property
    def hold(self) -> int | None:
        """The token for a note that sounds on; None without `held`."""
        return self._first_pitch + self.highest + 1 - self.lowest if self.held else None

    @property
    def axes(self) -> tuple[str, ...]:
        """What `coordinates` returns: the step, and the MIDI pitch or -1."""
        return ("step", "pitch")

    def coordinates(self, tokens: Any, positions: Any) -> Any:
        """Return step and MIDI pitch of tokens at positions in their pieces, a last axis of two.

        The boundary at position 0 stands one step before the first. It, rests and holds, whose
        pitch only the tokens before tell, have pitch -1.
        """
        xp = tokens.__array_namespace__()
        pitch = tokens - self._first_pitch + self.lowest
        pitched = (pitch >= self.lowest) & (pitch <= self.highest)
        return xp.stack([(positions - 1) // self.stride, xp.where(pitched, pitch, -1)], axis=-1)

    @property
    def _first_pitch(self) -> int:
        return self.rest + 1

    def encode(self, piece: Chorale) -> Int32[np.ndarray, " len"]:
        """Return the tokens of a chorale, four per step, without boundaries.

        Raises:
            ValueError: a pitch is outside the range; the text says which, and where.
        """
        sounding = piece.pitch != REST
        outside = sounding & ((piece.pitch < self.lowest) | (piece.pitch > self.highest))
        if outside.any():
            step, voice = np.argwhere(outside)[0].tolist()
            pitch = int(piece.pitch[step, voice])
            raise ValueError(
                f"step {step} of the {VOICES[voice]} of {piece.name or 'a chorale'} is "
                f"{pitch_name(pitch)} ({pitch}); the vocabulary has {self.lowest} to "
                f"{self.highest}: transpose the piece or widen the range"
            )
        tokens = np.where(
            sounding, piece.pitch.astype(np.int32) - self.lowest + self._first_pitch, self.rest
        )
        if self.hold is not None:
            tokens = np.where(sounding & ~piece.onset, self.hold, tokens)
        return tokens.reshape(-1).astype(np.int32)

    def decode(self, tokens: Int[np.ndarray, " len"]) -> Chorale:
        """Return the chorale that tokens spell.

        A boundary at the very start is skipped; reading stops at the next. An incomplete last step
        is dropped. A hold with nothing to hold is a rest.

        Raises:
            ValueError: `tokens` is not one row of integers, or one is outside the vocabulary.
        """
        tokens = self._piece_tokens(np.asarray(tokens))
        steps = tokens.reshape(-1, self.stride).astype(np.int64)
        is_pitch = (steps >= self._first_pitch) & (steps != self.hold)
        pitch = np.where(is_pitch, steps - self._first_pitch + self.lowest, REST).astype(np.int8)
        if self.hold is None:
            return Chorale(pitch=pitch, onset=change_onsets(pitch))
        struck = np.where(steps == self.hold, 0, np.arange(len(steps))[:, None])
        latest = np.maximum.accumulate(struck, axis=0)
        return Chorale(pitch=np.take_along_axis(pitch, latest, axis=0), onset=is_pitch)

    def _piece_tokens(self, tokens: np.ndarray) -> np.ndarray:
        if tokens.ndim != 1 or (tokens.size and tokens.dtype.kind not in "iu"):
            raise ValueError(
                f"tokens are {tokens.dtype} of shape {tokens.shape}; wanted one row of integers"
            )
        tokens = of_one_piece(tokens, len(self.names))
        return tokens[: len(tokens) - len(tokens) % self.stride]
