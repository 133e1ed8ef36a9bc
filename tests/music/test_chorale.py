import numpy as np
import pytest
from chorale_strategy import chorales
from hypothesis import given

from music.chorale import REST, Chorale, Note, change_onsets, pitch_name


def voices(*columns: list[int]) -> np.ndarray:
    """Pitches of the first voices; the others rest."""
    pitch = np.full((len(columns[0]), 4), REST, np.int8)
    pitch[:, : len(columns)] = np.array(columns).T
    return pitch


def test_notes_end_at_the_next_onset_at_a_rest_or_with_the_piece():
    pitch = voices([60, 60, 60, REST, 62, 62], [50, 50, 51, 51, REST, REST])
    onset = change_onsets(pitch)
    onset[1, 0] = True
    chorale = Chorale(pitch, onset)
    assert chorale.notes(0) == [Note(0, 1, 60), Note(1, 3, 60), Note(4, 6, 62)]
    assert chorale.notes(1) == [Note(0, 2, 50), Note(2, 4, 51)]
    assert chorale.notes(2) == []


@given(chorales())
def test_notes_say_all_that_the_arrays_say(chorale: Chorale):
    pitch, onset = np.full_like(chorale.pitch, REST), np.zeros_like(chorale.onset)
    for voice in range(4):
        for note in chorale.notes(voice):
            pitch[note.start : note.end, voice] = note.pitch
            onset[note.start, voice] = True
    np.testing.assert_array_equal(pitch, chorale.pitch)
    np.testing.assert_array_equal(onset, chorale.onset)


C = voices([60, 60])
STRUCK = change_onsets(C)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"pitch": C.astype(np.int64)}, "pitch is int64 of shape (2, 4); wanted a numpy array of"),
        ({"pitch": C[:, :3]}, "pitch is int8 of shape (2, 3)"),
        ({"pitch": C.tolist()}, "pitch is list"),
        ({"onset": STRUCK[:1]}, "onset is bool of shape (1, 4); wanted"),
        ({"onset": STRUCK.astype(np.int8)}, "onset is int8"),
        ({"fermata": np.zeros(3, np.bool_)}, "fermata is bool of shape (3,); wanted"),
        ({"pitch": voices([60, -2])}, "step 1 of the soprano has a pitch below -1"),
        ({"onset": np.ones((2, 4), np.bool_)}, "step 0 of the alto has an onset on a rest"),
        ({"pitch": voices([60, 62])}, "step 1 of the soprano has a new pitch without an onset"),
        ({"onset": np.zeros((2, 4), np.bool_)}, "step 0 of the soprano has a new pitch without"),
        ({"tonic": 12}, "tonic is 12; wanted 0 (C) to 11 (B)"),
        ({"meter": (4, 3)}, "meter is 4/3; wanted"),
        ({"meter": (0, 4)}, "meter is 0/4; wanted"),
        ({"pickup": 16}, "pickup is 16 sixteenths; wanted 0 to 15"),
        ({"meter": (3, 8), "pickup": -1}, "pickup is -1 sixteenths; wanted 0 to 5"),
        ({"tonic": -1, "name": "bwv0"}, "chorale 'bwv0': tonic is -1"),
    ],
)
def test_a_chorale_that_contradicts_itself_is_refused(fields: dict, complaint: str):
    with pytest.raises((ValueError, TypeError)) as caught:
        Chorale(**{"pitch": C, "onset": STRUCK} | fields)
    if isinstance(caught.value, ValueError):  # with --typecheck jaxtyping refuses arrays first
        assert complaint in str(caught.value)


def test_pitches_have_their_usual_names():
    assert [pitch_name(p) for p in (0, 36, 60, 61, 69, 127)] == [
        "C-1",
        "C2",
        "C4",
        "C#4",
        "A4",
        "G9",
    ]
