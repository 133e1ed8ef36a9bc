"""What mixes tokens: one verb for training, prefill, decoding and recurrence."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

from flax import nnx
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float

from kernels.attention.places import Places
from longctx.attention.positions import NoPosition, Position


class Statistic(nnx.Variable):
    """What a layer measures of its inputs and no gradient changes, e.g. centroids of clusters."""


class Measured:
    """Base of training states that carry nothing on: their layer sees each batch alone."""


class Told(NamedTuple):
    """What a pass of training tells besides its outputs."""

    loss: Float[Array, ""]
    """Added to the mean loss of the batch, with its gradient."""
    metrics: dict[str, Float[Array, ""]]
    """Numbers to log, by name."""


class Mixer(nnx.Module):
    """A layer that carries information between tokens."""

    def init_state(self, batch: int, capacity: int) -> Any:
        """Return the state before the first token, for up to `capacity` tokens a row."""
        raise NotImplementedError

    def grow_state(self, state: Any, capacity: int) -> Any:
        """Return the same state with room for `capacity` tokens; the default needs no room."""
        return state

    def training_state(self, batch: int) -> Any:
        """Return the state that training starts from and carries from batch to batch.

        The default, None, carries nothing. All its arrays have the batch as their first axis. Rows
        may be packed: tokens of another segment than those in the state share nothing with them.
        """
        return None

    def told(self, state: Any) -> Told | None:
        """Return what the pass that left this training state tells; the default tells nothing."""
        return None

    def absorb(self, state: Any) -> None:
        """Update the layer's `Statistic` variables by what a pass of training left in its state."""

    def __call__(
        self,
        x: Float[Array, "batch len model"],
        at: Places = Places(),
        state: Any = None,
    ) -> tuple[Float[Array, "batch len model"], Any]:
        """Feed `len` new tokens after those in `state`; return outputs and the state after them.

        Without a state nothing came before and nothing is kept: the pass of training. A position
        of -1 is padding, whose output means nothing and which leaves the state as it was. Tokens of
        different segments share nothing. Any way of cutting a sequence into chunks gives the
        outputs of the whole.

        Raises:
            ValueError: the mixer can't continue a state, or not with what `at` holds.
        """
        raise NotImplementedError


def refuse_packed_state(at: Places, state: Any) -> None:
    """Refuse several documents in a row that continues a state, which belongs to one of them.

    Raises:
        ValueError: both segments and a state are given.
    """
    if state is not None and at.segments is not None:
        raise ValueError(
            "packed documents can't continue a state; feed each document in its own row"
        )


class MixerConfig(ABC):
    """A frozen dataclass that builds a mixer."""

    paper: ClassVar[str] = ""
    """The source in a few words, e.g. "Press et al. 2022"."""

    @classmethod
    def small(cls) -> tuple[Self, ...]:
        """Return instances for tests: about 40 tokens, width 16; the property kit runs each."""
        return (cls(),)

    @abstractmethod
    def build(self, model: int, dtype: DTypeLike, rngs: nnx.Rngs) -> Mixer:
        """Return the mixer for a model of this width, computing in `dtype`.

        Raises:
            ValueError: the config does not fit the width.
        """

    @property
    def prefix(self) -> int | None:
        """How many first tokens see each other in both directions; None if any see ahead."""
        return 0

    @property
    def selects_ahead(self) -> bool:
        """Whether later tokens decide which earlier ones are seen: its likelihood isn't causal."""
        return False

    def scored(self, model: int, window: int) -> float:
        """Return the pairs of a window that talk times the width that scores them.

        It is for the count of operations; the default has no pairs.
        """
        return 0.0

    @property
    def position_scheme(self) -> Position:
        """How place enters; the network asks what it does to embeddings, and what it reads."""
        return NoPosition()
