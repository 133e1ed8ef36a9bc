import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chorale_strategy import chorales
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from longctx.data.base import SPLITS
from longctx.data.coordinates import Coordinates
from longctx.data.vocabulary import vocabulary_hash
from music.chorale import REST, Chorale, change_onsets
from music.chorales import load_chorales
from music.tokenizers.chorale_grid import ChoraleGrid

GRID, HELD = ChoraleGrid(), ChoraleGrid(held=True)


def test_the_vocabulary_of_the_benchmark():
    assert len(GRID.names) == 48
    assert GRID.names[:3] == ("boundary", "rest", "C2 (36)")
    assert (GRID.names[26], GRID.names[-1]) == ("C4 (60)", "A5 (81)")
    assert HELD.names == (*GRID.names, "hold")
    assert (GRID.stride, GRID.boundary) == (4, 0)


def test_steps_are_spelled_soprano_to_bass():
    pitch = np.array([[72, 67, REST, 36], [72, 67, 64, 36]], np.int8)
    onset = change_onsets(pitch)
    onset[1, 3] = True
    chorale = Chorale(pitch, onset)
    assert GRID.encode(chorale).tolist() == [38, 33, 1, 2, 38, 33, 30, 2]
    assert HELD.encode(chorale).tolist() == [38, 33, 1, 2, 48, 48, 30, 2]


@pytest.mark.parametrize("split", SPLITS)
def test_embedded_chorales_come_back(split):
    for chorale in load_chorales(split):
        exact = HELD.decode(HELD.encode(chorale))
        np.testing.assert_array_equal(exact.pitch, chorale.pitch)
        np.testing.assert_array_equal(exact.onset, chorale.onset)
        joined = GRID.decode(GRID.encode(chorale))
        np.testing.assert_array_equal(joined.pitch, chorale.pitch)
        np.testing.assert_array_equal(joined.onset, change_onsets(chorale.pitch))


@given(chorales())
def test_with_held_notes_nothing_is_lost(chorale: Chorale):
    back = HELD.decode(HELD.encode(chorale))
    np.testing.assert_array_equal(back.pitch, chorale.pitch)
    np.testing.assert_array_equal(back.onset, chorale.onset)


@given(chorales())
def test_without_held_notes_only_repetitions_are_lost(chorale: Chorale):
    back = GRID.decode(GRID.encode(chorale))
    np.testing.assert_array_equal(back.pitch, chorale.pitch)
    np.testing.assert_array_equal(back.onset, change_onsets(chorale.pitch))


@pytest.mark.parametrize("grid", [GRID, HELD])
@given(data=st.data())
def test_whatever_a_model_samples_is_a_chorale(grid: ChoraleGrid, data: st.DataObject):
    tokens = data.draw(
        arrays(np.int32, st.integers(0, 40), elements=st.integers(0, len(grid.names) - 1))
    )
    chorale = grid.decode(tokens)
    body = tokens[1:] if tokens.size and tokens[0] == 0 else tokens
    spelled = int((np.append(body, 0) == 0).argmax())
    assert chorale.steps == spelled // 4
    again = grid.decode(grid.encode(chorale))
    np.testing.assert_array_equal(again.pitch, chorale.pitch)
    np.testing.assert_array_equal(again.onset, chorale.onset)


def test_a_piece_ends_at_the_first_boundary_after_its_start():
    step = [38, 33, 30, 2]
    for tokens in ([0, *step, 0, *step], [*step, 0], [0, *step, 38, 33], step):
        assert GRID.decode(np.array(tokens)).pitch.tolist() == [[72, 67, 64, 36]]
    assert GRID.decode(np.array([0, 0, *step])).steps == 0


def test_a_hold_with_nothing_to_hold_is_a_rest():
    hold, rest, c4 = 48, 1, 26
    steps = [[hold, c4, rest, c4], [hold, hold, hold, rest], [c4, hold, hold, hold]]
    chorale = HELD.decode(np.array(steps).reshape(-1))
    assert chorale.pitch.tolist() == [[-1, 60, -1, 60], [-1, 60, -1, -1], [60, 60, -1, -1]]
    assert np.argwhere(chorale.onset).tolist() == [[0, 1], [0, 3], [2, 0]]


def test_a_pitch_outside_the_range_is_named_with_its_place():
    pitch = np.full((3, 4), 60, np.int8)
    pitch[2, 3] = 35
    chorale = Chorale(pitch, change_onsets(pitch), name="low")
    with pytest.raises(ValueError, match=re.escape("step 2 of the bass of low is B1 (35)")):
        GRID.encode(chorale)
    assert ChoraleGrid(lowest=35).decode(ChoraleGrid(lowest=35).encode(chorale)).pitch[2, 3] == 35


def test_a_foreign_token_is_refused():
    for token in (-1, 48):
        with pytest.raises(ValueError, match=f"token {token} at place 1 is outside the vocabulary"):
            GRID.decode(np.array([0, token]))
    with pytest.raises((ValueError, TypeError), match="tokens"):
        GRID.decode(np.array([[1, 1, 1, 1]]))
    with pytest.raises((ValueError, TypeError), match="tokens"):
        GRID.decode(np.array([1.0, 1.0]))


@pytest.mark.parametrize("bounds", [(60, 59), (-1, 81), (36, 128)])
def test_an_impossible_range_is_refused(bounds: tuple[int, int]):
    with pytest.raises(ValueError, match=f"pitch range is {bounds[0]} to {bounds[1]}"):
        ChoraleGrid(*bounds)


def test_grids_that_spell_differently_have_different_hashes():
    grids = GRID, HELD, ChoraleGrid(lowest=35), ChoraleGrid(lowest=37, highest=82)
    assert len({vocabulary_hash(grid) for grid in grids}) == len(grids)


@pytest.mark.parametrize("backend", [np.asarray, jnp.asarray])
def test_coordinates_are_the_step_and_the_pitch(backend):
    """By numpy and jax alike, and compiled: four tokens to a step, the boundary before them."""
    tokens = np.array([[0, 38, 33, 1, 2, 47, 48, 30, 2, 0]])
    for grid, hold in ((HELD, -1), (ChoraleGrid(highest=82), 82)):
        rule = grid.coordinates if backend is np.asarray else jax.jit(grid.coordinates)
        step, pitch = np.moveaxis(rule(backend(tokens), backend(np.arange(10)[None])), -1, 0)
        assert step.tolist() == [[-1, 0, 0, 0, 0, 1, 1, 1, 1, 2]]
        assert pitch.tolist() == [[-1, 72, 67, -1, 36, 81, hold, 64, 36, -1]]
    assert isinstance(GRID, Coordinates)
    assert len(GRID.axes) == 2
