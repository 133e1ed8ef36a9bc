"""Attention for TPUs: what the kernels serve, and how a call becomes whole tiles."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from kernels.attention.padding import pad
from kernels.attention.pallas_tpu.backward import Given, Gradients
from kernels.attention.pallas_tpu.choice import choose
from kernels.attention.pallas_tpu.forward import forward, row_walk
from kernels.attention.pallas_tpu.stretches import gradients
from kernels.attention.pallas_tpu.tile import Inputs, Plan
from kernels.attention.pallas_tpu.walk import MAX_STEPS, MAX_TILES
from kernels.attention.places import Places
from kernels.attention.saved import of_rows, saved
from kernels.attention.spec import Pattern
from kernels.attention.term import Entries, Term, score_entries_only
from kernels.platform import platform


def pallas_tpu(
    q: Array,
    k: Array,
    v: Array,
    pattern: Pattern,
    term: Term | None,
    q_at: Places,
    k_at: Places,
) -> tuple[Array, Array]:
    """Return (out, lse); see `kernels.attention.attention`. On a CPU it is interpreted, for tests.

    Raises:
        NotImplementedError: positions are given, the term isn't one of the distance alone or adds
            to the values, arrays are neither bfloat16 nor float32, there are too many tiles to
            visit, or the device is a GPU.
        ValueError: the term's tables fit neither the heads nor the dim.
    """
    if platform() == "gpu":
        raise NotImplementedError("pallas_tpu is for TPUs; on a GPU use pallas_gpu")
    if q_at.positions is not None:
        raise NotImplementedError("pallas_tpu serves consecutive positions only")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (jnp.bfloat16, jnp.float32):
        raise NotImplementedError(
            f"pallas_tpu serves bfloat16 or float32, not {q.dtype}, {k.dtype} and {v.dtype}"
        )
    return run(choose(q, k, pattern, term is not None), q, k, v, term, q_at, k_at)


def run(
    plan: Plan, q: Array, k: Array, v: Array, term: Term | None, q_at: Places, k_at: Places
) -> tuple[Array, Array]:
    """Return (out, lse) with this plan."""
    if max(plan.q_tiles, plan.k_tiles) > MAX_TILES:
        raise NotImplementedError(f"pallas_tpu serves up to {MAX_TILES * plan.size} tokens")
    steps = len(row_walk(plan)) - 2
    if steps > MAX_STEPS:
        raise NotImplementedError(
            f"pallas_tpu lists the tiles to visit in scalar memory, which holds {MAX_STEPS}, not "
            f"{steps} of {plan.size} queries and keys: choose a sparser pattern or fewer tokens"
        )
    entries = _entries(plan, term, q)
    q_to, k_to = plan.q_tiles * plan.size, plan.k_tiles * plan.size
    segments = None
    if q_at.segments is not None and k_at.segments is not None:
        segments = pad(q_at.segments, 1, q_to, -2), pad(k_at.segments, 1, k_to, -2)
        segments = segments[0][:, None], segments[1][:, None]
    q, k, v = pad(q, 2, q_to), pad(k, 2, k_to), pad(v, 2, k_to)
    out, lse = _core(plan, q, k, v, entries, segments)  # pyright: ignore[reportGeneralTypeIssues]
    return out[:, :, : plan.q_len], lse[:, :, : plan.q_len]


def _entries(plan: Plan, term: Term | None, q: Array) -> Entries:
    length = (plan.q_tiles + plan.k_tiles) * plan.size
    largest = plan.k_len - plan.q_len + plan.q_tiles * plan.size
    embeddings, bias, _ = score_entries_only("pallas_tpu", term, largest - np.arange(length), q)
    return Entries(
        embeddings=None if embeddings is None else embeddings.astype(q.dtype),
        bias=None if bias is None else bias[:, None].astype(jnp.float32),
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _core(plan: Plan, q, k, v, entries: Entries, segments) -> tuple[Array, Array]:
    return _forward(plan, q, k, v, entries, segments)[0]


def _forward(plan: Plan, q, k, v, entries: Entries, segments):
    out, lse = forward(plan, Inputs(q, k, v, entries, entries, segments))
    out, lse = saved(out, lse[:, :, 0])
    return (out, lse), (q, k, v, entries, segments, out, lse)


def _backward(plan: Plan, residuals, cotangents):
    q, k, v, entries, segments, out, lse = residuals
    d_out, d_lse = cotangents
    lse, delta = of_rows(out, lse, d_out, d_lse)
    given = Given(d_out.astype(q.dtype), lse[:, :, None], delta[:, :, None])
    found = gradients(plan, Inputs(q, k, v, entries, entries, segments), given)
    d = jax.tree.map(lambda g, x: g.astype(x.dtype), found, Gradients(q, k, v, entries))
    return d.q, d.k, d.v, d.entries, None


_core.defvjp(_forward, _backward)
