"""The one signature of attention, and the choice of who serves a call."""

from collections.abc import Callable

from jax import Array
from jaxtyping import Float

from kernels.attention.blockwise import blockwise
from kernels.attention.decode import decode
from kernels.attention.pallas_gpu import pallas_gpu
from kernels.attention.pallas_tpu import pallas_tpu
from kernels.attention.places import Places, check_places
from kernels.attention.reference import reference
from kernels.attention.row_blocks import row_blocks
from kernels.attention.spec import Pattern
from kernels.attention.term import Term
from kernels.platform import platform
from kernels.serve import serve

IMPLEMENTATIONS: dict[str, Callable[..., tuple[Array, Array]]] = {
    "reference": reference,
    "blockwise": blockwise,
    "row_blocks": row_blocks,
    "decode": decode,
    "pallas_tpu": pallas_tpu,
    "pallas_gpu": pallas_gpu,
}

PREFERRED = {
    "cpu": ("decode", "row_blocks", "blockwise"),
    "tpu": ("decode", "pallas_tpu", "blockwise"),
    "gpu": ("decode", "pallas_gpu", "blockwise"),
}
"""Implementations to try, best first, by platform."""


def attention(
    q: Float[Array, "batch heads q_len dim"],
    k: Float[Array, "batch kv_heads k_len dim"],
    v: Float[Array, "batch kv_heads k_len dim"],
    *,
    pattern: Pattern,
    term: Term | None = None,
    q_at: Places = Places(),
    k_at: Places | None = None,
    scale: float | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
) -> (
    Float[Array, "batch heads q_len dim"]
    | tuple[Float[Array, "batch heads q_len dim"], Float[Array, "batch heads q_len"]]
):
    """Return `softmax(scale * q k^T + term) v` over the pairs that `pattern` allows.

    Args:
        q, k, v: each key head serves `heads / kv_heads` consecutive query heads.
        pattern: which pairs may talk.
        term: what is added to the scores.
        q_at, k_at: where the tokens stand; without `k_at` the keys are the queries' own tokens.
            Without positions keys have positions 0, 1, ... and queries are the last of them: the
            fast case, where a term's distances are known while compiling. Only tokens of one
            segment talk.
        scale: factor on the queries, `dim ** -0.5` by default.
        return_lse: also return the float32 logsumexp of each row's scores (-inf: saw no key), from
            which `merge` joins results over separate sets of keys.
        implementation: a name in `IMPLEMENTATIONS`, or None for the first that can.

    Returns:
        `out` in the dtype of `q`; sums are float32. A row that sees no key is 0, and so is its
        gradient.

    Raises:
        ValueError: shapes do not fit each other, or the implementation's name is unknown.
        NotImplementedError: the named implementation cannot serve this call; the text says why.
        ExceptionGroup: none can; it holds every reason.
    """
    k_at = q_at if k_at is None else k_at
    _check(q, k, v)
    check_places(q, q_at, k, k_at)
    # A scale of numpy or jax would make bfloat16 queries float32, which hardly any kernel takes.
    q = (q * (q.shape[-1] ** -0.5 if scale is None else scale)).astype(q.dtype)
    preferred = PREFERRED.get(platform(), ("decode", "blockwise"))
    args = (q, k, v, pattern, term, q_at, k_at)
    out, lse = serve(IMPLEMENTATIONS, preferred, implementation, *args)
    out = out.astype(q.dtype)
    return (out, lse) if return_lse else out


def _check(q: Array, k: Array, v: Array) -> None:
    if k.shape != v.shape or k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"q {q.shape}, k {k.shape} and v {v.shape} must be [batch, heads, len, dim] with one "
            "batch and dim, and k and v of one shape"
        )
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads can't share {k.shape[1]} key heads evenly")
