"""Counting the pairs that a kernel computes, while the compiled kernel runs.

XLA's cost analysis counts the body of a loop once, however often it runs, so it can't tell what a
loop over tiles costs.
"""

import math
from typing import Any, cast

import jax
import numpy as np

from kernels.attention import Pattern


def counted(pattern: Pattern) -> tuple[Pattern, list[int]]:
    """Return the same pattern, and a list of the pairs of each tile that asks it which may talk.

    The list grows while compiled code runs: read it after `jax.effects_barrier()`. The kernel has
    to ask at every tile that it computes, as `decode`, `blockwise` and `reference` do; `row_blocks`
    does not ask where it knows that all pairs may talk.
    """
    asked: list[int] = []
    return cast(Pattern, _Counted(pattern, asked)), asked


@Pattern.register  # not a subclass, which would be a variant for everybody
class _Counted:
    def __init__(self, pattern: Pattern, asked: list[int]):
        self._pattern, self._asked = pattern, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pattern, name)

    def allows(self, q_pos: Any, k_pos: Any) -> Any:
        pairs = math.prod(np.broadcast_shapes(q_pos.shape, k_pos.shape))
        jax.debug.callback(lambda: self._asked.append(pairs))
        return self._pattern.allows(q_pos, k_pos)
