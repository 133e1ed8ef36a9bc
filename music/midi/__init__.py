"""MIDI files, however odd: music or a reason, and never a crash."""
