"""The external memory: keys and values that no gradient reaches, in a ring."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Shaped

from kernels.attention.places import Places
from longctx.attention.memory.parts import WHOLE, divided, on_parts, slots_of

Storage = Literal["float32", "bfloat16", "int8"]
"""How the numbers of an entry are kept; int8 has a float32 factor for each key and value."""


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["k", "v", "k_scale", "v_scale", "at"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Entries:
    """Keys and values as they are stored, with their places; position -1 is no entry."""

    k: Shaped[Array, "batch kv_heads slots dim"]
    v: Shaped[Array, "batch kv_heads slots dim"]
    k_scale: Float[Array, "batch kv_heads slots"] | None
    v_scale: Float[Array, "batch kv_heads slots"] | None
    at: Places

    @classmethod
    def of(
        cls,
        k: Float[Array, "batch kv_heads slots dim"],
        v: Float[Array, "batch kv_heads slots dim"],
        at: Places,
        storage: Storage,
    ) -> "Entries":
        """Return entries of these keys and values; no gradient reaches what is stored."""
        k, v = jax.lax.stop_gradient((k, v))
        if storage == "int8":
            (k, k_scale), (v, v_scale) = _rounded(k), _rounded(v)
            return cls(k, v, k_scale, v_scale, at)
        return cls(k.astype(storage), v.astype(storage), None, None, at)

    def take(
        self, index: Int[Array, "batch kv_heads found"]
    ) -> tuple[Float[Array, "batch kv_heads found dim"], Float[Array, "batch kv_heads found dim"]]:
        """Return float32 keys and values of some entries."""
        return _taken(self.k, self.k_scale, index), _taken(self.v, self.v_scale, index)


def _rounded(x: Array) -> tuple[Array, Array]:
    x = x.astype(jnp.float32)
    scale = jnp.abs(x).max(axis=-1) / 127.0
    safe = jnp.where(scale == 0, 1.0, scale)
    return jnp.round(x / safe[..., None]).astype(jnp.int8), scale


def _taken(x: Array, scale: Array | None, index: Array) -> Array:
    found = jnp.take_along_axis(x, index[..., None], axis=2).astype(jnp.float32)
    if scale is None:
        return found
    return found * jnp.take_along_axis(scale, index, axis=2)[..., None]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["entries", "next"],
    meta_fields=["storage", "axis"],
)
@dataclass(frozen=True)
class Store:
    """The last `slots` entries of each row, in the order in which they came.

    A full store overwrites its oldest entry. `next` is the slot that the next entry takes. The
    slots may be divided over the devices of a mesh `axis`.
    """

    entries: Entries
    next: Int[Array, " batch"]
    storage: Storage
    axis: str | None = None

    @classmethod
    def empty(
        cls,
        batch: int,
        kv_heads: int,
        slots: int,
        dim: int,
        storage: Storage,
        packed: bool = False,
        axis: str | None = None,
    ) -> "Store":
        """Return a store without entries; a `packed` one keeps the document of each.

        Raises:
            ValueError: it would have no slot, or its slots can't be divided over the axis.
        """
        if slots < 1:
            raise ValueError(f"a store needs at least 1 slot, not {slots}")
        nowhere = jnp.full((batch, slots), -1, jnp.int32)
        zeros = jnp.zeros((batch, kv_heads, slots, dim))
        entries = Entries.of(zeros, zeros, Places(nowhere, nowhere if packed else None), storage)
        if axis is not None:
            entries = divided(entries, slots, axis)
        return cls(entries, jnp.zeros(batch, jnp.int32), storage, axis)

    def extend(self, new: Entries) -> "Store":
        """Return the store after these entries; padding (position -1) leaves no trace.

        Raises:
            ValueError: they lack what the store keeps of places, or have more.
        """
        positions = new.at.positions
        if positions is None or (new.at.segments is None) != (self.entries.at.segments is None):
            raise ValueError(
                "a store wants the positions of its entries, and their segments if and only if it "
                f"is packed, but got {new.at}"
            )
        slot, after = self._slots_for(new)
        write = partial(_written, axis=self.axis)
        if self.axis is not None:
            part = slots_of(self.entries, self.axis)
            write = on_parts(self.axis, write, (part, WHOLE, WHOLE), part)
        return replace(self, entries=write(self.entries, new, slot), next=after)

    def resized(self, slots: int) -> "Store":
        """Return a store of another size with the newest of the entries, as many as it can hold.

        Raises:
            ValueError: it would have no slot.
        """
        batch, kv_heads, before, dim = self.entries.k.shape
        age = (self.next[:, None] + jnp.arange(before)) % before  # the oldest first

        def in_order(x: Array) -> Array:
            if x.ndim == 2:
                return jnp.take_along_axis(x, age, axis=1)
            return jnp.take_along_axis(x, age.reshape(batch, 1, before, *(1,) * (x.ndim - 3)), 2)

        packed = self.entries.at.segments is not None
        empty = Store.empty(batch, kv_heads, slots, dim, self.storage, packed, self.axis)
        return empty.extend(jax.tree.map(in_order, self.entries))

    def _slots_for(self, new: Entries) -> tuple[Array, Array]:
        """Return the slot of each new entry, past the last for what leaves no trace, and `next`."""
        (batch, _, slots, _), length = self.entries.k.shape, new.k.shape[2]
        at = jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, length)), new.at)
        real = at.positions >= 0
        if at.segments is not None:
            real &= at.segments >= 0
        rank, total = jnp.cumsum(real, axis=1) - 1, real.sum(axis=1)
        keep = real & (rank >= total[:, None] - slots)
        slot = jnp.where(keep, (self.next[:, None] + rank) % slots, slots)
        return slot, ((self.next + total) % slots).astype(jnp.int32)


def _written(old: Entries, new: Entries, slot: Array, axis: str | None) -> Entries:
    """Return the entries with new ones in their slots, of which a device may hold a part."""
    batch, slots = old.at.positions.shape  # pyright: ignore
    first = 0 if axis is None else jax.lax.axis_index(axis) * slots
    here = jnp.where(slot < first, slots, slot - first)  # out of bounds: dropped
    row = jnp.arange(batch)[:, None]

    def by_head(old: Array, new: Array) -> Array:
        return old.at[row, :, here].set(new.swapaxes(1, 2), mode="drop")

    return replace(
        jax.tree.map(by_head, replace(old, at=None), replace(new, at=None)),
        at=jax.tree.map(lambda old, new: old.at[row, here].set(new, mode="drop"), old.at, new.at),
    )
