"""What a position scheme may do, at its three places: embedding, queries and keys, or score."""

from typing import Any, ClassVar, Self

from flax import nnx
from jax import Array
from jaxtyping import Float, Int

from kernels.attention.term import Term


def require_at_least(config: Any, **least: float) -> None:
    """Refuse a config that has a smaller value in one of these fields.

    Raises:
        ValueError: a field's value is below its least.
    """
    for name, bound in least.items():
        if not getattr(config, name) >= bound:
            raise ValueError(
                f"{type(config).__name__} needs a {name} of at least {bound}, "
                f"not {getattr(config, name)}"
            )


class EmbeddingPlace(nnx.Module):
    """Adds place to the token embeddings of a model."""

    def __call__(
        self, x: Float[Array, "batch len model"], positions: Int[Array, "rows len"]
    ) -> Float[Array, "batch len model"]:
        raise NotImplementedError


class AttentionPlace(nnx.Module):
    """Brings place into one attention layer; this base class brings none."""

    def rotate(
        self, x: Float[Array, "batch heads len dim"], positions: Int[Array, "rows len"]
    ) -> Float[Array, "batch heads len dim"]:
        """Return queries or keys with their place in them; keys are cached like this."""
        return x

    def term(self) -> Term | None:
        """Return what is added to the scores."""
        return None


class Position:
    """A position scheme: a frozen dataclass that builds the modules for its places."""

    paper: ClassVar[str] = ""
    """Where it is from, in a few words."""

    @classmethod
    def small(cls) -> tuple[Self, ...]:
        """Return instances at the scale of tests: about 40 tokens, 4 heads of width 4."""
        return (cls(),)

    @property
    def parts(self) -> tuple["Position", ...]:
        """The schemes that it consists of."""
        return (self,)

    @property
    def axes(self) -> int:
        """How many coordinates of a token it reads, besides the position."""
        return 0

    @property
    def rotates(self) -> bool:
        """Whether it turns queries and keys by an angle that grows with their place."""
        return False

    @property
    def reads_queries(self) -> bool:
        """Whether its score term multiplies the queries, which must not be turned then."""
        return False

    @property
    def limit(self) -> int | None:
        """How many positions it knows; None is any number."""
        return None

    def in_embedding(self, model: int, rngs: nnx.Rngs) -> EmbeddingPlace | None:
        """Return what acts on the embeddings of width `model`, once per network."""
        return None

    def in_attention(self, heads: int, dim: int, rngs: nnx.Rngs) -> AttentionPlace:
        """Return what acts in an attention layer with `heads` heads of width `dim`."""
        return AttentionPlace()
