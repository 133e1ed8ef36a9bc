"""Any tokenizer that Hugging Face's `tokenizers` library saved as a tokenizer.json."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from longctx.data.extras import import_extra
from longctx.data.tokenizers.base import Tokenizer, read_local


@dataclass(frozen=True)
class HuggingFace(Tokenizer):
    """A tokenizer.json on disk; needs the extra `text`, and never the network.

    Texts are encoded without the beginnings and ends that the file's template would add: the
    boundary stands there. Byte-level tokenizers decode every text to itself; others give back what
    their normaliser left of it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no tokenizer.json.
    """

    file: str
    """The tokenizer.json."""

    @cached_property
    def _content(self) -> bytes:
        return read_local(self.file)

    @cached_property
    def _tokenizer(self) -> Any:
        library, content = import_extra("tokenizers", "text"), self._content
        try:
            return library.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(
                f"{self.file} is no tokenizer.json ({error}); save one with Tokenizer.save"
            ) from None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The boundary with the hash of the file, and the file's own names."""
        digest = hashlib.sha256(self._content).hexdigest()[:16]
        words = {i: word for word, i in self._tokenizer.get_vocab().items()}
        own = (words.get(i, f"unused {i}") for i in range(max(words, default=-1) + 1))
        return (f"boundary of {digest}", *own)

    def ids(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, ids):
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
