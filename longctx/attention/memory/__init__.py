"""What lies outside the tokens that attention sees: entries, their ring, and who may be found."""

from longctx.attention.memory.beyond import Beyond
from longctx.attention.memory.store import Entries, Storage, Store

__all__ = ["Beyond", "Entries", "Storage", "Store"]
