"""Byte-pair encoding by OpenAI's `tiktoken`, from a file of ranks."""

import base64
import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from longctx.data.extras import import_extra
from longctx.data.tokenizers.base import Tokenizer, read_local


@dataclass(frozen=True)
class Tiktoken(Tokenizer):
    """A *.tiktoken file on disk with its pattern; needs the extra `text`, never the network.

    What looks like a special token in a text is encoded as any other characters, so texts decode
    to themselves and can't forge one.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file or the pattern does not serve; the text says where.
    """

    file: str
    """Lines of a base64 token, a space, and its rank."""
    pattern: str
    """The regular expression that cuts a text into words before bytes are merged; it belongs to
    the ranks and must leave no character out."""
    special: tuple[tuple[str, int], ...] = ()
    """Names and ids of special tokens, such as (("<|endoftext|>", 50256),)."""

    @cached_property
    def _content(self) -> bytes:
        return read_local(self.file)

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        ranks = {}
        for number, line in enumerate(self._content.splitlines(), start=1):
            try:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
            except ValueError:
                raise ValueError(
                    f"{self.file}:{number} is {line[:60]!r}; wanted a base64 token, a space and "
                    "its rank"
                ) from None
        missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
        if missing:
            raise ValueError(
                f"{self.file} has no rank for byte {missing[0]} and {len(missing) - 1} others; "
                "wanted all 256 bytes, so that every text can be spelled"
            )
        return ranks

    @cached_property
    def _encoding(self) -> Any:
        return import_extra("tiktoken", "text").Encoding(
            self.file,
            pat_str=self.pattern,
            mergeable_ranks=self._ranks,
            special_tokens=dict(self.special),
        )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The boundary with the hash of file and pattern, then the bytes of every token."""
        digest = hashlib.sha256(self._content + self.pattern.encode()).hexdigest()[:16]
        words = {i: repr(word)[1:] for word, i in self._ranks.items()}
        words |= {i: word for word, i in self.special}
        own = (words.get(i, f"unused {i}") for i in range(max(words) + 1))
        return (f"boundary of {digest}", *own)

    def ids(self, text):
        ids = self._encoding.encode_ordinary(text)
        if self._encoding.decode_bytes(ids) != text.encode():
            raise ValueError(
                f"the pattern {self.pattern!r} leaves out characters of {text[:40]!r}; give the "
                "pattern that belongs to the ranks"
            )
        return ids

    def text(self, ids):
        return self._encoding.decode(ids.tolist())
