"""Random chorales for property tests."""

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from music.chorale import REST, Chorale, change_onsets


@st.composite
def chorales(draw, min_steps: int = 0) -> Chorale:
    """Few pitches, so that holds, repetitions, unisons and crossings all happen."""
    shape = draw(st.integers(min_steps, 20)), 4
    pitch = draw(arrays(np.int8, shape, elements=st.sampled_from([REST, 36, 59, 60, 61, 81])))
    struck = draw(arrays(np.bool_, shape))
    return Chorale(pitch, (struck & (pitch != REST)) | change_onsets(pitch))
