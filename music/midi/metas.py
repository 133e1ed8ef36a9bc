"""Meta events: tempo, time and key signatures, names, lyrics and markers."""

from dataclasses import dataclass, field

from symusic.core import KeySignatureTick, TempoTick, TextMetaTick, TimeSignatureTick

from music.midi.limits import Damage

NAME, LYRIC, MARKER, TEMPO, TIME_SIGNATURE, KEY_SIGNATURE = 0x03, 0x05, 0x06, 0x51, 0x58, 0x59
USED = {NAME, LYRIC, MARKER, TEMPO, TIME_SIGNATURE, KEY_SIGNATURE}
FINEST_BEAT = 7
"""Power of two of the shortest beat, 1/128."""


@dataclass
class Metas:
    """The meta events of a track that music is made of."""

    name: str = ""
    """The last one given."""
    tempos: list[TempoTick] = field(default_factory=list)
    time_signatures: list[TimeSignatureTick] = field(default_factory=list)
    key_signatures: list[KeySignatureTick] = field(default_factory=list)
    markers: list[TextMetaTick] = field(default_factory=list)
    lyrics: list[TextMetaTick] = field(default_factory=list)
    utf8: bool = True
    """All texts are UTF-8."""


def read_metas(events: list[tuple[int, int, bytes]], damage: Damage) -> Metas:
    """Return the (tick, type, content) events read; impossible ones are counted in `damage`."""
    metas = Metas()
    for tick, kind, content in events:
        if kind == NAME:
            metas.name = _text(content, metas)
        elif kind == LYRIC:
            metas.lyrics.append(TextMetaTick(tick, _text(content, metas)))
        elif kind == MARKER:
            metas.markers.append(TextMetaTick(tick, _text(content, metas)))
        elif kind == TEMPO:
            if len(content) == 3 and any(content):
                metas.tempos.append(TempoTick(tick, mspq=int.from_bytes(content, "big")))
            else:
                damage.add("has a tempo of zero or of other than three bytes, left out")
        elif kind == TIME_SIGNATURE:
            if len(content) == 4 and content[0] and content[1] <= FINEST_BEAT:
                beats, unit = content[0], 1 << content[1]
                metas.time_signatures.append(TimeSignatureTick(tick, beats, unit))
            else:
                damage.add("has an impossible time signature, left out")
        elif kind == KEY_SIGNATURE:
            sharps = int.from_bytes(content[:1], "big", signed=True)
            if len(content) == 2 and abs(sharps) <= 7 and content[1] <= 1:
                metas.key_signatures.append(KeySignatureTick(tick, sharps, content[1]))
            else:
                damage.add("has an impossible key signature, left out")
    return metas


def _text(content: bytes, metas: Metas) -> str:
    """Return a text in UTF-8 or else Latin-1, which holds any bytes; files do not tell."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        metas.utf8 = False
        return content.decode("latin-1")
