"""What a training run is: data, model, optimizer, and how long."""

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
from jax.typing import DTypeLike

from longctx.data.base import DataConfig
from longctx.evaluator import Evaluator
from longctx.model import Model, ModelConfig
from longctx.train.optimizer import AdamW
from longctx.transformer import Transformer


@dataclass(frozen=True)
class Train:
    """One training run; with equal code and machine, equal configs give equal weights."""

    data: DataConfig
    """Where the pieces come from."""
    model: ModelConfig = Transformer()
    """The network."""
    optimizer: AdamW = AdamW()
    """How parameters change."""
    evaluators: tuple[Evaluator, ...] = ()
    """What is measured on the way."""
    steps: int = 2000
    """Updates of the parameters in all."""
    batch: int = 8
    """Windows per step."""
    accumulate: int = 1
    """Parts a batch is cut into, one after the other, to save memory."""
    window: int = 1024
    """Tokens predicted per window; longer pieces are cropped at random."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the network computes in; parameters and sums are float32 always."""
    seed: int = 0
    """Of the initial weights, the order of the data, the crops and dropout."""
    save_every: int = 500
    """Steps between two checkpoints."""
    best: str = "valid/nll"
    """The evaluated number whose smallest value marks the best checkpoint."""
    log_every: int = 10
    """Steps between two lines of the log."""

    def __post_init__(self):
        for name in ("steps", "batch", "accumulate", "window", "save_every", "log_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.batch % self.accumulate:
            raise ValueError(
                f"batch {self.batch} must be a multiple of accumulate {self.accumulate}"
            )

        self._refuse_foresight()

    def _refuse_foresight(self) -> None:
        seen, given = self.model.prefix, self.data.given
        if given is None or (seen is not None and seen <= given):
            return
        sees = "ahead everywhere" if seen is None else f"the first {seen} tokens at once"
        raise ValueError(
            f"the model sees {sees}, but {type(self.data).__name__} asks it to predict all after "
            f"the first {given}: take a causal pattern, Masked data for an encoder, or SourceTarget"
        )

    def carry(self, model: Model) -> Any:
        """Return what the network carries from batch to batch, before the first; None if nothing.

        Only on data whose rows go on in the next batch does it carry anything that far.
        """
        return model.training_state(self.batch) if self.data.continuous else None

    @property
    def compute_dtype(self) -> DTypeLike:
        return jnp.bfloat16 if self.dtype == "bfloat16" else jnp.float32
