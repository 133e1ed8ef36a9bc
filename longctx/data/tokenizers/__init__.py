"""Vocabularies of text; a variant is a file."""

from longctx.data.tokenizers.base import Tokenizer
from longctx.data.tokenizers.bytes import Bytes
from longctx.data.tokenizers.hugging_face import HuggingFace
from longctx.data.tokenizers.tiktoken import Tiktoken

__all__ = ["Bytes", "HuggingFace", "Tiktoken", "Tokenizer"]
