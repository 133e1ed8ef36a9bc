"""What lies outside the tokens that attention sees: entries, and the ring that keeps them."""

from longctx.attention.memory.store import Entries, Storage, Store

__all__ = ["Entries", "Storage", "Store"]
