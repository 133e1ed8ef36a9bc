"""What a MIDI file may cost, and what was found wrong with it."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Limits:
    """The most that one MIDI file may hold or cost; files beyond are skipped, longer ones cut."""

    bytes: int = 8 << 20
    """Size of the file."""
    tracks: int = 1024
    """Number of track chunks."""
    notes: int = 1_000_000
    """Number of notes."""
    hours: float = 24.0
    """Duration; what lies later is left out."""
    seconds: float = 30.0
    """Time for reading one file: a worker process is ended, `read_midi` alone looks at its clock
    between tracks."""
    memory: int = 2 << 30
    """Bytes of memory that a worker process may take for one file."""

    def __post_init__(self):
        for name in ("bytes", "tracks", "notes", "hours", "seconds", "memory"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} is {value}; wanted a limit above zero")


class Unreadable(ValueError):
    """There is no music to be had from these bytes, for the reason given."""


@dataclass
class Damage:
    """What was wrong with one file: each kind once, in the order met, with its count.

    Kinds are constant sentences without a subject, so that there are few of them.
    """

    searches: int = 100_000
    """How many more places may be tried as the next event after a fault; shared by all tracks."""
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, count: int = 1) -> None:
        """Count one more case of a kind."""
        self.kinds[kind] += count

    def reasons(self) -> tuple[str, ...]:
        """Return one sentence for each kind."""
        return tuple(
            kind if count == 1 else f"{kind} ({count:,} times)"
            for kind, count in self.kinds.items()
        )
