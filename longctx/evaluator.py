"""What measures a model, inside training and out of it alike."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from flax import nnx

from longctx.data.base import DataConfig
from longctx.data.coordinates import Coordinates, rule_for


@dataclass(frozen=True)
class Trained:
    """A model at some step of its training, with what is needed to run it."""

    graphdef: nnx.GraphDef
    params: nnx.State
    data: DataConfig
    window: int
    """Tokens per training window."""
    step: int

    def model(self) -> Any:
        """Return the network as a callable module."""
        return nnx.merge(self.graphdef, self.params)

    def rule(self) -> Coordinates | None:
        """Return what gives tokens the coordinates that the network reads; None if it reads none.

        Raises:
            ValueError: the vocabulary supplies none, or others.
        """
        return rule_for(self.model().axes, self.data.vocabulary())


@dataclass(frozen=True)
class Audio:
    """Sound to log: a complete WAV file."""

    wav: bytes


@dataclass(frozen=True)
class Image:
    """A picture to log: a complete PNG file."""

    png: bytes


Value = float | Audio | Image


@dataclass(frozen=True)
class Evaluator(ABC):
    """A measurement; a config holds as many as it likes."""

    every: int = 500
    """Training steps between two runs; the last step always runs it."""

    @abstractmethod
    def run(self, trained: Trained) -> Iterator[tuple[str, Value]]:
        """Yield named results, e.g. `("valid/nll", 0.5)`."""
