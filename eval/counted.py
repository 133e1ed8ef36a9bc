"""A pattern that counts the pairs that a kernel computes, while the compiled kernel runs.

XLA's cost analysis counts the body of a loop once, however often it runs, so it can't tell what a
loop over tiles costs.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from kernels.attention import Pattern


@dataclass(frozen=True, eq=False)
class Counted(Pattern):
    """Allows what `pattern` allows, and notes how many pairs each tile has that asks.

    The kernel has to ask at every tile that it computes, as `decode`, `blockwise` and `reference`
    do; `row_blocks` does not ask where it knows that all pairs may talk.
    """

    pattern: Pattern
    """The pattern that answers."""
    asked: list[int] = field(default_factory=list, init=False)
    """The pairs of each tile so far; read it after `jax.effects_barrier()`."""

    @property
    def window(self) -> int | None:
        return self.pattern.window

    @property
    def relative(self) -> bool:
        return self.pattern.relative

    @property
    def prefix(self) -> int | None:
        return self.pattern.prefix

    def allows(self, q_pos: Any, k_pos: Any) -> Any:
        pairs = math.prod(np.broadcast_shapes(q_pos.shape, k_pos.shape))
        jax.debug.callback(lambda: self.asked.append(pairs))
        return self.pattern.allows(q_pos, k_pos)

    def classify(self, q_first, q_last, k_first, k_last):
        return self.pattern.classify(q_first, q_last, k_first, k_last)
