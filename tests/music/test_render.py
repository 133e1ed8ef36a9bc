import wave
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from matplotlib.image import imread

from music.chorale import REST, Chorale, change_onsets
from music.chorales import load_chorales
from music.render import COLOURS, MOST_SECONDS, midi_bytes, piano_roll, to_midi, to_wav

BACH = min(load_chorales("valid"), key=lambda chorale: chorale.steps)


def soprano_alone(pitch: int, steps: int) -> Chorale:
    pitches = np.full((steps, 4), REST, np.int8)
    pitches[:, 0] = pitch
    return Chorale(pitches, change_onsets(pitches))


def samples(wav: bytes) -> tuple[np.ndarray, int]:
    """Return the samples of both channels, full scale being 1, and the rate."""
    with wave.open(BytesIO(wav)) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (2, 2)
        data = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return data.reshape(-1, 2) / 32767, file.getframerate()


def test_midi_has_four_choir_voices_with_meter_pickup_and_key():
    chorale = next(c for c in load_chorales("train") if c.pickup and c.minor)
    midi = to_midi(chorale, quarter_bpm=60.0)
    assert [track.name for track in midi.instruments] == ["Soprano", "Alto", "Tenor", "Bass"]
    assert {track.program for track in midi.instruments} == {52}
    assert midi.get_end_time() == pytest.approx(chorale.steps / 4)
    signatures = [(s.numerator, s.denominator, s.time) for s in midi.time_signature_changes]
    assert signatures == [(chorale.pickup, 16, 0), (*chorale.meter, chorale.pickup / 4)]
    assert chorale.tonic is not None
    assert [key.key_number for key in midi.key_signature_changes] == [chorale.tonic + 12]


@pytest.mark.parametrize(
    "render",
    [
        lambda: midi_bytes(to_midi(BACH)),
        lambda: to_wav(midi_bytes(to_midi(BACH))),
        lambda: piano_roll(BACH, "twice"),
    ],
    ids=["midi", "wav", "png"],
)
def test_the_same_chorale_gives_the_same_bytes(render: Callable[[], bytes]):
    assert render() == render()


@pytest.mark.parametrize("bpm", [0.0, 3.9, 1001.0])
def test_an_impossible_tempo_is_refused(bpm: float):
    with pytest.raises(ValueError, match=f"quarter_bpm is {bpm}; wanted 4 to 1000"):
        to_midi(BACH, bpm)


def test_sound_lasts_as_long_as_the_piece_and_peaks_at_minus_three_decibels():
    sound, rate = samples(to_wav(midi_bytes(to_midi(BACH, quarter_bpm=120.0))))
    assert len(sound) / rate == pytest.approx(BACH.steps / 8, abs=0.5)
    assert 20 * np.log10(np.abs(sound).max()) == pytest.approx(-3, abs=0.01)
    assert np.sqrt((sound**2).mean()) > 0.05, "a click and silence"


@pytest.mark.parametrize(("pitch", "hertz"), [(69, 440.0), (60, 261.63), (48, 130.81)])
def test_the_pitch_that_sounds_is_the_one_written(pitch: int, hertz: float):
    sound, rate = samples(to_wav(midi_bytes(to_midi(soprano_alone(pitch, 24)))))
    spectrum = np.abs(np.fft.rfft(sound.mean(axis=1) * np.hanning(len(sound))))
    frequencies = np.fft.rfftfreq(len(sound), 1 / rate)
    near = np.abs(12 * np.log2(np.maximum(frequencies, 1) / hertz)) < 0.5
    between = np.abs(12 * np.log2(np.maximum(frequencies, 1) / hertz) - 3) < 2
    assert spectrum[near].max() > 10 * spectrum[between].max()


def test_silence_stays_silent():
    for chorale in (soprano_alone(REST, 8), soprano_alone(REST, 0)):
        sound, _ = samples(to_wav(midi_bytes(to_midi(chorale))))
        assert not sound.any()


def test_what_is_not_midi_is_not_played():
    no_tracks = b"MThd" + bytes([0, 0, 0, 6, 0, 1, 0, 0, 0, 96])
    for content in (b"", b"hello", no_tracks, midi_bytes(to_midi(BACH))[:-9]):
        with pytest.raises(ValueError, match=f"cannot play {len(content)} bytes as MIDI"):
            to_wav(content)


def test_endless_sound_is_not_rendered():
    midi = to_midi(soprano_alone(60, 24), quarter_bpm=4.0)
    midi.instruments[0].notes[0].end = MOST_SECONDS + 60
    with pytest.raises(ValueError, match="it lasts 1,260 seconds; wanted at most 1,200"):
        to_wav(midi_bytes(midi))


def test_the_picture_shows_every_voice_in_its_colour():
    picture = imread(BytesIO(piano_roll(BACH, "Bach")), format="png")[:, :, :3]
    for colour in COLOURS:
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        found = np.abs(picture - rgb).max(axis=2) < 1 / 255
        assert found.sum() > 2000, f"hardly any {colour}"
    high = np.abs(picture - [0x2F / 255, 0x5D / 255, 0x94 / 255]).max(axis=2) < 1 / 255
    assert np.flatnonzero(high.any(axis=1))[-1] > 0.8 * len(picture), (
        "the bass is not at the bottom"
    )


def test_the_picture_does_not_say_which_matplotlib_drew_it():
    picture = piano_roll(BACH, "Bach")
    assert b"atplotlib" not in picture
    assert b"tEXtSoftware" not in picture


def test_an_empty_piece_has_a_picture():
    assert (
        imread(BytesIO(piano_roll(soprano_alone(REST, 0), "nothing")), format="png").shape[2] == 4
    )
