"""A data set for tests: three documents of random symbols."""

from dataclasses import dataclass

import numpy as np

from longctx.data.base import DataConfig
from longctx.data.recall import Symbols


@dataclass(frozen=True)
class Documents(DataConfig):
    """Three documents of random tokens."""

    def vocabulary(self):
        return Symbols(keys=3, values=3, noise=3)

    def sequences(self, split):
        rng = np.random.default_rng(0)
        return tuple(rng.integers(1, 10, length).astype(np.int32) for length in (50, 9, 31))
