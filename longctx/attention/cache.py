"""The keys and values that a layer remembers."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["k", "v", "positions"],
    meta_fields=["ring"],
)
@dataclass(frozen=True)
class KVCache:
    """Slots for keys and values with their positions; -1 marks an empty slot.

    The token of position p lies in slot p modulo the number of slots. A ring forgets: it has as
    many slots as the pattern's window. Otherwise the slots are the capacity, and a token past it
    turns its row of the batch into NaN, since the right answer can no longer be given.
    """

    k: Float[Array, "batch kv_heads slots dim"]
    v: Float[Array, "batch kv_heads slots dim"]
    positions: Int[Array, "batch slots"]
    ring: bool

    @classmethod
    def empty(
        cls, batch: int, kv_heads: int, capacity: int, dim: int, dtype, window: int | None
    ) -> "KVCache":
        """Return a cache for up to `capacity` tokens, or for the last `window` of any number."""
        slots = capacity if window is None else window
        shape = (batch, kv_heads, slots, dim)
        return cls(
            k=jnp.zeros(shape, dtype),
            v=jnp.zeros(shape, dtype),
            positions=jnp.full((batch, slots), -1, jnp.int32),
            ring=window is not None,
        )

    def extend(
        self,
        k: Float[Array, "batch kv_heads len dim"],
        v: Float[Array, "batch kv_heads len dim"],
        positions: Int[Array, "batch len"],
    ) -> tuple[Array, Array, Array, "KVCache"]:
        """Return (k, v, positions) for the new queries to see, and the cache for later ones.

        `positions` rise by one per token within a row and continue what is stored; -1 is padding.
        """
        k, v = k.astype(self.k.dtype), v.astype(self.v.dtype)
        written = self._write(k, v, positions)
        if not self.ring or positions.shape[1] == 1:
            return written.k, written.v, written.positions, written
        seen_k = jnp.concatenate([self.k, k], axis=2)
        seen_v = jnp.concatenate([self.v, v], axis=2)
        return seen_k, seen_v, jnp.concatenate([self.positions, positions], axis=1), written

    def grow(self, capacity: int) -> "KVCache":
        """Return the same memory with room for `capacity` tokens; a ring stays as it is."""
        more = 0 if self.ring else max(0, capacity - self.positions.shape[1])
        wide = [(0, 0), (0, 0), (0, more), (0, 0)]
        return KVCache(
            k=jnp.pad(self.k, wide),
            v=jnp.pad(self.v, wide),
            positions=jnp.pad(self.positions, [(0, 0), (0, more)], constant_values=-1),
            ring=self.ring,
        )

    def _write(self, k: Array, v: Array, positions: Array) -> "KVCache":
        batch, slots = self.positions.shape
        keep = positions >= 0
        if self.ring:
            keep &= positions > positions.max(axis=1, keepdims=True) - slots
        else:
            lost = (positions >= slots).any(axis=1)[:, None, None, None]
            k = jnp.where(lost, jnp.nan, k)
        slot = jnp.where(keep, positions % slots, slots)  # out of bounds: dropped
        row = jnp.arange(batch)[:, None]
        return KVCache(
            k=self.k.at[row, :, slot].set(k.swapaxes(1, 2), mode="drop"),
            v=self.v.at[row, :, slot].set(v.swapaxes(1, 2), mode="drop"),
            positions=self.positions.at[row, slot].set(positions, mode="drop"),
            ring=self.ring,
        )
