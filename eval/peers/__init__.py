"""The same models in PyTorch, to compare speed and memory with; never part of our own runs."""

# pyright: reportMissingImports=false

from dataclasses import dataclass

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError(
        "the comparison peers need PyTorch, which is not a dependency of this project; "
        "install it beside: .venv/bin/python -m pip install torch jaxtyping"
    ) from error


@dataclass(frozen=True)
class PeerConfig:
    """The size of a peer, of its batches, and how it computes."""

    length: int
    """Tokens per sequence, in training and at most in generation."""
    batch: int
    layers: int = 5
    model: int = 256
    heads: int = 8
    hidden: int = 1024
    vocab: int = 388
    threads: int = 2
    bfloat16: bool = False
    """Whether matrix products run in bfloat16 (autocast); parameters stay float32."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model % self.heads:
            raise ValueError(f"model={self.model} has to be a multiple of heads={self.heads}")

    @property
    def dim(self) -> int:
        return self.model // self.heads
