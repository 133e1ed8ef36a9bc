"""A chorale as MIDI, as sound and as a picture; the same input gives the same bytes."""

import wave
from io import BytesIO
from pathlib import Path

import midirenderer
import numpy as np
import pretty_midi
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from symusic.core import ScoreSecond

from music.chorale import REST, STEPS_PER_QUARTER, VOICES, Chorale, pitch_name

COLOURS = ("#c8553d", "#e0a030", "#3d8a5f", "#2f5d94")
"""Soprano to bass: apart in hue and in lightness, also for colour-blind eyes."""

MOST_SECONDS = 1200
"""Longer sound is not rendered: a minute of it takes 12 MB, and five times that to make."""

_CHOIR = pretty_midi.instrument_name_to_program("Choir Aahs")
_TICKS_PER_QUARTER = 480
_VELOCITY = 80
_PEAK = 10 ** (-3 / 20)
_BLACK_KEYS = (1, 3, 6, 8, 10)


def to_midi(chorale: Chorale, quarter_bpm: float = 90.0) -> pretty_midi.PrettyMIDI:
    """Return the chorale as four choir tracks, Soprano to Bass, with meter, pickup and key.

    Rests after the last note are lost, and so are fermatas. `read_chorale` gives the rest back.

    Raises:
        ValueError: `quarter_bpm`, quarter notes per minute, is not from 4 to 1000.
    """
    if not 4 <= quarter_bpm <= 1000:
        raise ValueError(f"quarter_bpm is {quarter_bpm}; wanted 4 to 1000 quarters per minute")
    midi = pretty_midi.PrettyMIDI(resolution=_TICKS_PER_QUARTER, initial_tempo=quarter_bpm)
    step = 60 / quarter_bpm / STEPS_PER_QUARTER
    midi.time_signature_changes = [pretty_midi.TimeSignature(*chorale.meter, 0)]
    if chorale.pickup:
        midi.time_signature_changes = [
            pretty_midi.TimeSignature(chorale.pickup, 16, 0),
            pretty_midi.TimeSignature(*chorale.meter, chorale.pickup * step),
        ]
    if chorale.tonic is not None:
        key = chorale.tonic + (12 if chorale.minor else 0)
        midi.key_signature_changes = [pretty_midi.KeySignature(key, 0)]
    for voice, name in enumerate(VOICES):
        track = pretty_midi.Instrument(_CHOIR, name=name.capitalize())
        track.notes = [
            pretty_midi.Note(_VELOCITY, note.pitch, note.start * step, note.end * step)
            for note in chorale.notes(voice)
        ]
        midi.instruments.append(track)
    return midi


def midi_bytes(midi: pretty_midi.PrettyMIDI) -> bytes:
    """Return the content of a MIDI file."""
    buffer = BytesIO()
    midi.write(buffer)
    return buffer.getvalue()


def to_wav(midi: bytes) -> bytes:
    """Return the sound of a MIDI file as a 16-bit WAV file, its peak at -3 dB of full scale.

    Played on TimGM6mb, the small General MIDI soundfont that comes with pretty_midi.

    Raises:
        ValueError: `midi` is not a MIDI file that can be played, or lasts longer than
            `MOST_SECONDS`.
    """
    with wave.open(BytesIO(_play(midi))) as file:
        parameters = file.getparams()
        samples = np.frombuffer(file.readframes(parameters.nframes), "<i2").astype(np.float32)
    loudest = np.abs(samples).max(initial=0)
    if loudest:
        samples *= _PEAK * 32767 / loudest
    buffer = BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setparams(parameters)
        file.writeframes(np.rint(samples).astype("<i2").tobytes())
    return buffer.getvalue()


def _play(midi: bytes) -> bytes:
    """Return the sound as the renderer gives it, a quiet WAV file."""
    soundfont = Path(pretty_midi.__file__).with_name("TimGM6mb.sf2").read_bytes()
    try:
        seconds = ScoreSecond.from_midi(midi).end()
        if not 0 <= seconds <= MOST_SECONDS:
            raise ValueError(f"it lasts {seconds:,.0f} seconds; wanted at most {MOST_SECONDS:,}")
        return midirenderer.render_wave_from(soundfont, midi)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the renderer, written in Rust, is no Exception
        raise ValueError(f"cannot play {len(midi):,} bytes as MIDI: {error}") from error


def piano_roll(chorale: Chorale, title: str) -> bytes:
    """Return a PNG picture: time in bars to the right, pitch upwards, a colour per voice."""
    sounding = chorale.pitch[chorale.pitch != REST]
    low, high = (int(sounding.min()), int(sounding.max())) if sounding.size else (48, 72)
    width = min(max(7.0, 2.2 + 0.055 * chorale.steps), 26.0)
    figure = Figure(figsize=(width, 1.6 + 0.1 * (high - low + 5)), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for voice, name in enumerate(VOICES):
        notes = chorale.notes(voice)
        axes.barh(
            [note.pitch for note in notes],
            [note.end - note.start - 0.18 for note in notes],
            left=[note.start + 0.09 for note in notes],
            height=0.82,
            color=COLOURS[voice],
            label=name.capitalize(),
            zorder=3,
        )
    _draw_keys(axes, low - 2, high + 2)
    _draw_bars(axes, chorale)
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=26)
    axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(-0.005, 1.0), frameon=False, fontsize=9)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw_keys(axes: Axes, low: int, high: int) -> None:
    """Shade the rows of black keys and name the white ones."""
    for pitch in range(low, high + 1):
        if pitch % 12 in _BLACK_KEYS:
            axes.axhspan(pitch - 0.5, pitch + 0.5, color="#f0f0f2", linewidth=0, zorder=0)
        if pitch % 12 == 0:
            axes.axhline(pitch - 0.5, color="#c9c9d0", linewidth=0.7, zorder=1)
    white = [pitch for pitch in range(low, high + 1) if pitch % 12 not in _BLACK_KEYS]
    axes.set_yticks(white, [pitch_name(pitch) for pitch in white], fontsize=6.5)
    axes.set_ylim(low - 0.5, high + 0.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _draw_bars(axes: Axes, chorale: Chorale) -> None:
    """Draw and number the bar lines; a pickup is bar 0."""
    lines = range(chorale.pickup, chorale.steps + 1, chorale.bar)
    for line in lines:
        axes.axvline(line, color="#8b8b95", linewidth=0.8, zorder=2)
    numbered = [line for line in lines if line < chorale.steps]
    axes.set_xticks(numbered, [str(bar) for bar in range(1, len(numbered) + 1)], fontsize=8)
    axes.set_xlim(0, max(chorale.steps, 1))
    axes.set_xlabel(f"bar ({chorale.meter[0]}/{chorale.meter[1]})", fontsize=9)
