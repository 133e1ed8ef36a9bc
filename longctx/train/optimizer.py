"""AdamW with warm-up, cosine decay and clipping (Loshchilov & Hutter 2019)."""

from dataclasses import dataclass
from typing import Any

import jax
import optax


@dataclass(frozen=True)
class AdamW:
    """The optimizer and its learning-rate schedule."""

    learning_rate: float = 1e-3
    """Peak, reached at the end of the warm-up."""
    warmup: int = 200
    """Steps of linear warm-up from 0."""
    final: float = 0.1
    """Where the cosine ends, as a share of the peak."""
    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.98
    """Decay of the mean of squared gradients."""
    weight_decay: float = 0.1
    """Applied to matrices only: parameters with two or more axes."""
    clip: float = 1.0
    """Largest global norm of the gradient."""

    def __post_init__(self):
        for name in ("learning_rate", "clip"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.warmup < 0 or self.weight_decay < 0:
            raise ValueError("warmup and weight_decay can't be negative")

    def schedule(self, steps: int) -> optax.Schedule:
        """Return the learning rate as a function of the step, over `steps` in all."""
        return optax.warmup_cosine_decay_schedule(
            init_value=0.0,
            peak_value=self.learning_rate,
            warmup_steps=min(self.warmup, steps - 1),
            decay_steps=steps,
            end_value=self.learning_rate * self.final,
        )

    def build(self, steps: int) -> optax.GradientTransformation:
        """Return the gradient transformation for a run of `steps`."""
        return optax.chain(
            optax.clip_by_global_norm(self.clip),
            optax.adamw(
                self.schedule(steps),
                b1=self.beta1,
                b2=self.beta2,
                weight_decay=self.weight_decay,
                mask=_matrices,
            ),
        )


def _matrices(params: Any) -> Any:
    return jax.tree.map(lambda p: p.ndim >= 2, params)
