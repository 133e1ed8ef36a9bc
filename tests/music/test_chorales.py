import numpy as np
import pytest

from longctx.data.base import SPLITS
from music.chorales import Chorales, load_chorales, pack, unpack


def test_the_embedded_collection():
    pieces = {split: load_chorales(split) for split in SPLITS}
    assert [len(pieces[split]) for split in SPLITS] == [241, 75, 64]
    assert [sum(c.steps for c in pieces[split]) for split in SPLITS] == [54_216, 15_944, 13_672]
    chorales = [chorale for split in SPLITS for chorale in pieces[split]]
    assert len({chorale.name for chorale in chorales}) == 380
    pitches = np.concatenate([chorale.pitch for chorale in chorales])
    assert (pitches[pitches >= 0].min(), pitches.max()) == (36, 81)
    for chorale in chorales:
        assert chorale.fermata is not None
        assert chorale.tonic is not None
        assert (chorale.pitch[[0, -1]] >= 0).any(axis=1).all(), f"{chorale.name} begins in silence"
    with_fermata = sum(c.fermata is not None and bool(c.fermata.any()) for c in chorales)
    assert with_fermata > 360


def test_a_well_known_chorale():
    """BWV 66.6, music21's own example: F sharp minor, a quarter of pickup, c#5 b4 a4 b4."""
    (chorale,) = [c for s in SPLITS for c in load_chorales(s) if c.name == "bwv66.6"]
    assert (chorale.tonic, chorale.minor, chorale.meter, chorale.pickup) == (6, True, (4, 4), 4)
    soprano = chorale.notes(0)
    assert [note.pitch for note in soprano[:6]] == [73, 71, 69, 71, 73, 76]
    assert [note.end - note.start for note in soprano[:6]] == [2, 2, 4, 4, 4, 4]
    assert chorale.steps == 144
    assert [note.pitch for note in chorale.notes(3)[-2:]] == [47, 54]


def test_the_collection_cannot_be_changed_by_its_readers():
    chorale = load_chorales("valid")[0]
    for array in (chorale.pitch, chorale.onset, chorale.fermata):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert load_chorales("valid")[0] is chorale


def test_packing_keeps_every_fact():
    pieces = {split: load_chorales(split)[:3] for split in SPLITS}
    back = unpack(pack(pieces))
    for split in SPLITS:
        assert len(back[split]) == 3
        for one, other in zip(pieces[split], back[split], strict=True):
            for field in ("pitch", "onset", "fermata"):
                np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
            for field in ("tonic", "minor", "meter", "pickup", "name"):
                assert getattr(one, field) == getattr(other, field)


@pytest.mark.parametrize(("held", "size"), [(False, 48), (True, 49)])
def test_the_data_set_spells_the_chorales(held: bool, size: int):
    data = Chorales(held=held)
    assert len(data.vocabulary().names) == size
    for split in SPLITS:
        sequences, chorales = data.sequences(split), load_chorales(split)
        assert [len(s) for s in sequences] == [4 * c.steps for c in chorales]
        used = np.unique(np.concatenate(sequences))
        assert used[0] == 1, "a boundary inside a piece"
        assert used[-1] == size - 1


def test_a_wrong_split_is_refused():
    with pytest.raises((ValueError, TypeError), match="split"):
        load_chorales("dev")  # pyright: ignore[reportArgumentType]
