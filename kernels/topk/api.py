"""The one signature of the search for nearest keys, and the choice of who serves a call."""

from collections.abc import Callable

import jax
from jax import Array
from jaxtyping import Float, Int, Shaped

from kernels.attention.places import Places, check_places, last_of
from kernels.attention.spec import Pattern
from kernels.platform import platform
from kernels.serve import serve
from kernels.topk.blockwise import approximate, blockwise
from kernels.topk.pallas_gpu import pallas_gpu
from kernels.topk.reference import reference

IMPLEMENTATIONS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "reference": reference,
    "blockwise": blockwise,
    "approximate": approximate,
    "pallas_gpu": pallas_gpu,
}

PREFERRED = {
    "cpu": ("approximate", "blockwise"),
    "tpu": ("approximate", "blockwise"),
    "gpu": ("pallas_gpu", "approximate", "blockwise"),
}
"""Implementations to try, best first, by platform: the approximate one refuses a recall of 1."""


def nearest(
    q: Float[Array, "batch heads q_len dim"],
    k: Shaped[Array, "batch kv_heads k_len dim"],
    *,
    count: int,
    pattern: Pattern,
    q_at: Places = Places(),
    k_at: Places | None = None,
    k_scale: Float[Array, "batch kv_heads k_len"] | None = None,
    recall: float = 1.0,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch heads q_len count"], Int[Array, "batch heads q_len count"]]:
    """Return the largest `k_scale * (q . k)` of each query, and which keys have them.

    Args:
        q, k: each key head serves `heads / kv_heads` consecutive query heads. Keys may be of any
            type, such as int8; products are float32.
        count: how many keys a query gets.
        pattern: which keys it may get, as in `kernels.attention.attention`.
        q_at, k_at: where the tokens stand, as there; position -1 is an empty slot.
        k_scale: factor on each key's products; 1 by default.
        recall: the share of the nearest that has to be found, in expectation; 1 is exact.
        implementation: a name in `IMPLEMENTATIONS`, or None for the first that can.

    Returns:
        Float32 scores, falling, and int32 indices of the keys; of equal keys the first comes first
        if the search is exact. Where a query has fewer keys than `count`, the rest are -inf and
        -1. No gradient flows: compute again the scores of what was found.

    Raises:
        ValueError: shapes do not fit each other, `count` or `recall` is out of its range, or the
            implementation's name is unknown.
        NotImplementedError: the named implementation cannot serve this call; the text says why.
        ExceptionGroup: none can; it holds every reason.
    """
    k_at = q_at if k_at is None else k_at
    _check(q, k, k_scale)
    check_places(q, q_at, k, k_at)
    if count < 1 or not 0.0 < recall <= 1.0:
        raise ValueError(f"count {count} must be positive and recall {recall} in (0, 1]")
    q, k, k_scale = jax.lax.stop_gradient((q, k, k_scale))
    places = last_of(q.shape[2], q_at, k.shape[2], k_at)
    args = (q, k, k_scale, count, pattern, *(at._replace(coordinates=None) for at in places))
    preferred = PREFERRED.get(platform(), ("approximate", "blockwise"))
    return serve(IMPLEMENTATIONS, preferred, implementation, *args, recall)


def _check(q: Array, k: Array, k_scale: Array | None) -> None:
    if q.ndim != 4 or k.ndim != 4 or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"q {q.shape} and k {k.shape} must be [batch, heads, len, dim] with one batch and dim"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads can't share {k.shape[1]} key heads evenly")
    if k_scale is not None and k_scale.shape != k.shape[:3]:
        raise ValueError(f"k_scale {k_scale.shape} must have one factor for each key of {k.shape}")
