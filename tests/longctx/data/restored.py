"""What every iterator of batches owes: from a saved place it goes on exactly."""

import json
from collections.abc import Callable
from itertools import islice

import grain
import jax
import numpy as np


def check_restored(make: Callable[[], grain.DatasetIterator], taken: int, more: int) -> None:
    """Take some batches, save the place as JSON, and compare what follows with a fresh iterator's
    that is set there."""
    iterator = make()
    for _ in islice(iterator, taken):
        pass
    place = json.loads(json.dumps(iterator.get_state()))
    want = list(islice(iterator, more))
    again = make()
    next(again)
    again.set_state(place)
    assert again.get_state() == place
    for ours, theirs in zip(islice(again, more), want, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
