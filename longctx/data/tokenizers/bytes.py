"""Text as its UTF-8 bytes (ByT5, Xue et al. 2022): nothing to train and nothing unknown."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from longctx.data.tokenizers.base import Tokenizer


@dataclass(frozen=True)
class Bytes(Tokenizer):
    """One token per byte, 257 with the boundary; every text decodes to itself."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The boundary, and for every byte what it spells, or its number beyond ASCII."""
        return ("boundary", *(repr(chr(b)) if b < 128 else f"byte {b}" for b in range(256)))

    def ids(self, text):
        return np.frombuffer(text.encode(), np.uint8)

    def text(self, ids):
        return ids.astype(np.uint8).tobytes().decode(errors="replace")
