"""The keys and values that a layer remembers."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from kernels.attention.places import Places


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["k", "v", "at"],
    meta_fields=["ring"],
)
@dataclass(frozen=True)
class KVCache:
    """Slots for keys and values with their places; position -1 marks an empty slot.

    The token of position p lies in slot p modulo the number of slots. A ring forgets: it has as
    many slots as the pattern's window. Otherwise the slots are the capacity, and a token past it
    turns its row of the batch into NaN, since the right answer can no longer be given.

    A packed cache knows the segment of each slot too. A new segment starts at position 0 again and
    writes over the old ones, which can't see it and won't be asked for.
    """

    k: Float[Array, "batch kv_heads slots dim"]
    v: Float[Array, "batch kv_heads slots dim"]
    at: Places
    ring: bool

    @classmethod
    def empty(
        cls,
        batch: int,
        kv_heads: int,
        capacity: int,
        dim: int,
        dtype: DTypeLike,
        window: int | None = None,
        axes: int = 0,
        packed: bool = False,
    ) -> "KVCache":
        """Return a cache for up to `capacity` tokens, or for the last `window` of any number.

        `axes` is the number of coordinates that a token has besides its position; `packed` says
        that several segments may come one after the other.
        """
        slots = capacity if window is None else window
        shape = (batch, kv_heads, slots, dim)
        return cls(
            k=jnp.zeros(shape, dtype),
            v=jnp.zeros(shape, dtype),
            at=Places(
                positions=jnp.full((batch, slots), -1, jnp.int32),
                segments=jnp.full((batch, slots), -1, jnp.int32) if packed else None,
                coordinates=jnp.zeros((batch, slots, axes), jnp.int32) if axes else None,
            ),
            ring=window is not None,
        )

    def extend(
        self,
        k: Float[Array, "batch kv_heads len dim"],
        v: Float[Array, "batch kv_heads len dim"],
        at: Places,
    ) -> tuple[Array, Array, Places, "KVCache"]:
        """Return (k, v, places) for the new queries to see, and the cache for later ones.

        `at` holds positions for every row; they rise by one per token and continue what is stored.
        """
        k, v = k.astype(self.k.dtype), v.astype(self.v.dtype)
        written = self._write(k, v, at)
        if k.shape[2] == 1 or not (self.ring or self.packed):
            return written.k, written.v, written.at, written
        seen_k = jnp.concatenate([self.k, k], axis=2)
        seen_v = jnp.concatenate([self.v, v], axis=2)
        seen_at = jax.tree.map(lambda old, new: jnp.concatenate([old, new], axis=1), self.at, at)
        return seen_k, seen_v, seen_at, written

    @property
    def packed(self) -> bool:
        """Whether several segments may come one after the other."""
        return self.at.segments is not None

    def grow(self, capacity: int) -> "KVCache":
        """Return the same memory with room for `capacity` tokens; a ring stays as it is."""
        batch, kv_heads, slots, dim = self.k.shape
        if self.ring or capacity <= slots:
            return self
        axes = 0 if self.at.coordinates is None else self.at.coordinates.shape[2]
        wider = KVCache.empty(
            batch, kv_heads, capacity, dim, self.k.dtype, axes=axes, packed=self.packed
        )
        return KVCache(
            k=wider.k.at[:, :, :slots].set(self.k),
            v=wider.v.at[:, :, :slots].set(self.v),
            at=jax.tree.map(lambda new, old: new.at[:, :slots].set(old), wider.at, self.at),
            ring=False,
        )

    def _write(self, k: Array, v: Array, at: Places) -> "KVCache":
        batch, slots = k.shape[0], self.k.shape[2]
        positions = at.positions
        assert positions is not None
        keep = positions >= 0
        if at.segments is not None:
            keep &= at.segments == last_segment(at)[:, None]
        if self.ring:
            newest = jnp.where(keep, positions, -1).max(axis=1, keepdims=True)
            keep &= positions > newest - slots
        else:
            lost = (positions >= slots).any(axis=1)[:, None, None, None]
            k = jnp.where(lost, jnp.nan, k)
        slot = jnp.where(keep, positions % slots, slots)  # out of bounds: dropped
        row = jnp.arange(batch)[:, None]
        return KVCache(
            k=self.k.at[row, :, slot].set(k.swapaxes(1, 2), mode="drop"),
            v=self.v.at[row, :, slot].set(v.swapaxes(1, 2), mode="drop"),
            at=jax.tree.map(lambda old, new: old.at[row, slot].set(new, mode="drop"), self.at, at),
            ring=self.ring,
        )


def last_segment(at: Places) -> Int[Array, " rows"]:
    """Return the segment of the last token of each row that is no padding; -1 if there is none."""
    assert at.positions is not None
    assert at.segments is not None
    real = (at.positions >= 0) & (at.segments >= 0)
    last = jnp.where(real, jnp.arange(real.shape[1]), 0).max(axis=1, keepdims=True)
    found = jnp.take_along_axis(at.segments, last, axis=1)
    return jnp.where(real.any(axis=1), found[:, 0], -1)
