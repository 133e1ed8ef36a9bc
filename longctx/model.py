"""What a network owes to training: a way to build it, and a count of its work."""

from abc import ABC, abstractmethod
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from longctx.mixer import Told


class Model(nnx.Module):
    """A network of tokens: `model(tokens, at, state, dropout_key) -> (logits, state)`."""

    def training_state(self, batch: int) -> Any:
        """Return what training carries from batch to batch; the default, None, is nothing."""
        return None

    def told(self, state: Any) -> Told | None:
        """Return what the pass that left this training state tells, of all layers."""
        return None

    def absorb(self, state: Any) -> None:
        """Update all layers' statistics by what a pass of training left in its state."""


class ModelConfig(ABC):
    """A frozen dataclass that builds a network of tokens, like `Transformer`."""

    tied: bool
    """The output layer is the embedding table, transposed."""

    @property
    def axes(self) -> int:
        """How many coordinates of a token the network reads, besides the position."""
        return 0

    @property
    def prefix(self) -> int | None:
        """How many first tokens are seen before they are predicted; None if any may be."""
        return 0

    @property
    def selects_ahead(self) -> bool:
        """Whether later tokens decide which earlier ones are seen: its likelihood isn't causal."""
        return False

    @abstractmethod
    def build(self, vocab: int, dtype: DTypeLike, seed: int) -> Model:
        """Return `model(tokens, at, state, dropout_key) -> (logits, state)`.

        Raises:
            ValueError: the widths do not fit each other.
        """

    @abstractmethod
    def multiplications(self, params: nnx.State, vocab: int, window: int) -> float:
        """Return those of a forward pass over a window, for each token of it that is trained.

        Counted are one for every weight of a matrix product, and the attention scores and their
        values for the pairs that talk. The embedding look-up is free; a tied table works once, as
        the output layer.
        """
