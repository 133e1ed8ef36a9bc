"""MIDI files, however odd: music or a reason, and never a crash."""

from music.midi.limits import Limits
from music.midi.read import Read, read_midi

__all__ = ["Limits", "Read", "read_midi"]
