"""What the kernels have in common: operands, positions, products, and the ring.

The ring turns scores by distance into scores by key, which Triton can't do in registers (it has no
gather). A program owns a small buffer in global memory, which stays in the L2 cache: it stores
`R = Q E^T` there, row by row, and loads it back at computed addresses. With `u` counting distances
from the largest down, a tile's pair (r, c) needs `R[r, u]` at `u = start + rows - 1 - r + c`: a
tile needs `rows + columns - 1` distances, the next tile of a run the same but for `columns`. So the
ring's columns are `u` modulo its width, and each tile adds only what the tile before lacks.

Barriers order the threads of one program: every thread's stores before a barrier are seen by every
thread's loads after it, and loads before it come before stores after it. That holds if the compiler
leaves loads where they are, so these kernels are compiled without pipelining (one stage).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from kernels.attention.pallas_gpu.plan import Blocks, Plan, Schedule, listed
from kernels.platform import platform

LOG2E = 1.4426950408889634
PROGRAMS = 1024
"""How many programs a kernel with rings has at most, so that their memory is bounded."""


class Operands(NamedTuple):
    """The inputs of every kernel, all padded; refs inside it."""

    q: Array
    k: Array
    v: Array
    embeddings: Array | None
    bias: Array | None
    q_segments: Array | None
    k_segments: Array | None


class Gradients(NamedTuple):
    """What the backward kernels need besides: lse is huge in rows that saw no key."""

    d_out: Array
    lse: Array
    delta: Array


def interpreted() -> bool:
    """Return whether kernels run as plain JAX, for want of a GPU."""
    return platform() == "cpu"


def wait() -> None:
    """Make a program's threads meet; interpreted programs have but one."""
    if not interpreted():
        plgpu.debug_barrier()


def dot(a: Array, b: Array, contract: tuple[int, int] = (1, 0)) -> Array:
    """Return the float32 product of two tiles.

    Float32 ones go through the tensor cores as three TF32 products, which keeps 22 bits or so;
    exact ones would be done without them, and don't fit into the registers.
    """
    precision = lax.Precision.HIGHEST
    if a.dtype == jnp.float32 and not interpreted():
        precision = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    return lax.dot_general(
        a, b, (((contract[0],), (contract[1],)), ((), ())),
        precision=precision, preferred_element_type=jnp.float32,
    )  # fmt: skip


def along(axis: int, size: int) -> Array:
    """Return 0, 1, ... along one axis of a tile; the other has size 1."""
    shape = (size, 1) if axis == 0 else (1, size)
    return lax.broadcasted_iota(jnp.int32, shape, axis)


def for_each_item(items: int, programs: int, body) -> None:
    """Do this program's share of the items."""
    program = pl.program_id(0)
    if items == programs:
        body(program)
        return

    def one(t, _):
        body(program + t * programs)

    lax.fori_loop(0, lax.div(items - program + programs - 1, programs), one, None)


def for_each_run(schedule: Schedule, program, run, carry):
    """Return what `run(masked, start, stop, carry)` makes of all runs of a block."""

    def one(masked, t, carry):
        return run(masked, schedule.runs[program, t, 0], schedule.runs[program, t, 1], carry)

    unmasked, every = schedule.counts[program, 0], schedule.counts[program, 1]
    carry = lax.fori_loop(0, unmasked, lambda t, carry: one(False, t, carry), carry)
    return lax.fori_loop(unmasked, every, lambda t, carry: one(True, t, carry), carry)


class Place(NamedTuple):
    """Where a tile lies: indices of batch row and heads, first query and first key."""

    batch: Array
    head: Array
    kv_head: Array
    row: Array
    column: Array


def start_of(plan: Plan, blocks: Blocks, at: Place) -> Array:
    """Return the first of a tile's distances, as a place in the list."""
    return (plan.q_padded - blocks.rows - listed(plan)[0]) - at.row + at.column


def allowed(plan: Plan, blocks: Blocks, x: Operands, at: Place, masked: bool, turned: bool):
    """Return which pairs of the tile talk, or None if all do; `turned` has a row for each key."""
    q_index = at.row + along(int(turned), blocks.rows)
    k_index = at.column + along(int(not turned), blocks.columns)
    seen = None
    if masked:
        seen = plan.pattern.allows(plan.offset + q_index, k_index) & (k_index < plan.k_len)
    if x.q_segments is not None and x.k_segments is not None:
        ours = x.q_segments[at.batch, pl.ds(at.row, blocks.rows)]
        theirs = x.k_segments[at.batch, pl.ds(at.column, blocks.columns)]
        same = ours[None] == theirs[:, None] if turned else ours[:, None] == theirs[None]
        seen = same if seen is None else seen & same
    return seen


def bias_of(plan: Plan, blocks: Blocks, x: Operands, at: Place, turned: bool) -> Array:
    """Return the bias of each pair of a tile."""
    u = start_of(plan, blocks, at) + blocks.rows - 1
    u = u - along(int(turned), blocks.rows) + along(int(not turned), blocks.columns)
    assert x.bias is not None
    return x.bias[_table(x.bias, at), u]


def entries_of(entries: Array | None, at: Place, u: Array, count: int) -> Array:
    """Return what this head's table holds of `count` distances from `u` on."""
    assert entries is not None
    return entries[_table(entries, at), pl.ds(u, count)]


def _table(entries: Array, at: Place):
    return at.head if entries.shape[0] > 1 else 0


class Ring(NamedTuple):
    """This program's part of a buffer [programs, rows, width]; see the top of this file."""

    buffer: Array
    program: Array

    def put(self, place: Array, block: Array) -> None:
        """Store columns from a place on, a multiple of how many there are."""
        columns = block.shape[1]
        place = pl.multiple_of(place & (self.buffer.shape[2] - 1), columns)
        self.buffer[self.program, :, pl.ds(place, columns)] = block.astype(self.buffer.dtype)

    def get(self, place: Array, columns: int, slope: int) -> Array:
        """Load `tile[r, c]` from the place `place + c + slope * r`."""
        rows, width = self.buffer.shape[1:]
        r = along(0, rows)
        place = (place + slope * r + along(1, columns)) & (width - 1)
        return self.buffer[self.program, jnp.broadcast_to(r, place.shape), place]


def fill(x: Operands, ring: Ring, at: Place, q: Array, u: Array, columns: int) -> None:
    """Store `Q E^T` for the distances from `u` on."""
    ring.put(u, dot(q, entries_of(x.embeddings, at, u, columns), (1, 1)))


def grid(items: int, ringed: bool) -> int:
    """Return how many programs do these items."""
    return min(items, PROGRAMS) if ringed else items


def compiler(blocks: Blocks) -> plgpu.CompilerParams:
    return plgpu.CompilerParams(num_warps=blocks.warps, num_stages=blocks.stages)
