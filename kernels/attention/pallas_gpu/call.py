"""Attention for GPUs through Triton: what the kernels serve, and their gradient."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kernels.attention.padding import pad
from kernels.attention.pallas_gpu.backward_kv import backward_kv
from kernels.attention.pallas_gpu.backward_q import backward_q
from kernels.attention.pallas_gpu.backward_term import backward_term
from kernels.attention.pallas_gpu.choice import blocks
from kernels.attention.pallas_gpu.forward import forward
from kernels.attention.pallas_gpu.plan import KernelBlocks, Plan, distances
from kernels.attention.pallas_gpu.tile import Gradients, Operands
from kernels.attention.places import Places
from kernels.attention.saved import of_rows, saved
from kernels.attention.spec import Pattern
from kernels.attention.term import Entries, Term, score_entries_only
from kernels.platform import platform
from kernels.tuning import measured

LARGEST_DIM = 128
DTYPES = (jnp.bfloat16, jnp.float32)


def pallas_gpu(
    q: Array,
    k: Array,
    v: Array,
    pattern: Pattern,
    term: Term | None,
    q_at: Places,
    k_at: Places,
    chosen: KernelBlocks | None = None,
) -> tuple[Array, Array]:
    """Return (out, lse); see `kernels.attention.attention`. On a CPU kernels are interpreted.

    `chosen` are the blocks to take instead of the measured or default ones.

    Raises:
        NotImplementedError: the device is no GPU and no CPU; positions are given; the term isn't
            one of the distance alone, or adds to the values; dim is above `LARGEST_DIM`; or a dtype
            is none of `DTYPES`.
        ValueError: the term's tables fit neither the heads nor the dim.
    """
    _check(q, k, v, q_at)
    if chosen is None:
        chosen = _chosen(q, k, term)
    batch, q_len, dim = q.shape[0], q.shape[2], q.shape[3]
    plan = Plan(pattern, q_len, k.shape[2], chosen)
    entries = score_entries_only("pallas_gpu", term, distances(plan), q)
    segments = None
    if q_at.segments is not None and k_at.segments is not None:
        segments = (
            pad(jnp.broadcast_to(q_at.segments, (batch, q_len)), 1, plan.q_padded),
            pad(jnp.broadcast_to(k_at.segments, (batch, plan.k_len)), 1, plan.k_padded),
        )
    width = _width(q)
    q = pad(pad(q, 3, width), 2, plan.q_padded)
    k, v = (pad(pad(x, 3, width), 2, plan.k_padded) for x in (k, v))
    if entries.embeddings is not None:
        entries = entries._replace(embeddings=pad(entries.embeddings, 2, width))
    out, lse = _core(plan, q, k, v, entries, segments)  # pyright: ignore
    return out[:, :, :q_len, :dim], lse[:, :, :q_len]


def _chosen(q: Array, k: Array, term: Term | None) -> KernelBlocks:
    """Return the default blocks, with rows and columns that were measured where some were."""
    usual = blocks(
        _width(q), q.dtype, score_entries_only("pallas_gpu", term, np.zeros(1, np.int32), q)
    )
    case, has_term = ("pallas_gpu", q.shape[3], q.dtype, k.shape[2]), term is not None
    ways = "forward", "backward", "backward", "backward"
    found = (measured(*case, term=has_term, way=way) for way in ways)
    pairs = zip(usual, found, strict=True)
    return KernelBlocks(*(of._replace(**new._asdict()) if new else of for of, new in pairs))


def _width(q: Array) -> int:
    """Return the dim that Triton takes: a power of 2 that fills a tensor core."""
    return max(16, 1 << (q.shape[3] - 1).bit_length())


def _check(q: Array, k: Array, v: Array, q_at: Places) -> None:
    if platform() not in ("cpu", "gpu"):
        raise NotImplementedError(f"pallas_gpu serves GPUs, and CPUs to test it, not {platform()}")
    if q_at.positions is not None:
        raise NotImplementedError("pallas_gpu serves consecutive positions only, not given ones")
    if q.shape[3] > LARGEST_DIM:
        raise NotImplementedError(
            f"pallas_gpu serves a dim of up to {LARGEST_DIM}, not {q.shape[3]}"
        )
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise NotImplementedError(
            f"pallas_gpu serves bfloat16 and float32, the same for q, k and v, not {q.dtype}, "
            f"{k.dtype}, {v.dtype}"
        )


Segments = tuple[Array, Array] | None


def _operands(q, k, v, entries: Entries, segments: Segments) -> Operands:
    embeddings, bias, _ = entries
    return Operands(
        q, k, v,
        None if embeddings is None else embeddings.astype(q.dtype),
        None if bias is None else bias.astype(jnp.float32),
        *(segments or (None, None)),
    )  # fmt: skip


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _core(plan: Plan, q, k, v, entries: Entries, segments: Segments) -> tuple[Array, Array]:
    return _forward(plan, q, k, v, entries, segments)[0]


def _forward(plan: Plan, q, k, v, entries: Entries, segments: Segments):
    x = _operands(q, k, v, entries, segments)
    out, lse = saved(*forward(plan, x))
    return (out, lse), (q, k, v, entries, segments, out, lse)


def _backward(plan: Plan, residuals, cotangents):
    q, k, v, entries, segments, out, lse = residuals
    d_out, d_lse = cotangents
    x = _operands(q, k, v, entries, segments)
    g = Gradients(d_out.astype(q.dtype), *of_rows(out, lse, d_out, d_lse))
    dk, dv = backward_kv(plan, x, g)
    d_entries = Entries()
    if jax.tree.leaves(entries):
        d_entries = jax.tree.map(_as_tables, backward_term(plan, x, g), entries)
    return backward_q(plan, x, g), dk, dv, d_entries, None


def _as_tables(gradient: Array, entries: Array) -> Array:
    """Return the gradient of the tables, summed over heads that share one."""
    if entries.shape[0] < gradient.shape[0]:
        gradient = gradient.sum(axis=0, keepdims=True)
    return gradient.astype(entries.dtype)


_core.defvjp(_forward, _backward)
