"""Several position schemes at once."""

from collections.abc import Iterable
from dataclasses import dataclass

from flax import nnx

from kernels.attention.term import SumTerm
from longctx.attention.positions.alibi import ALiBi
from longctx.attention.positions.base import AttentionPlace, Position
from longctx.attention.positions.concatenated_sinusoidal import ConcatenatedSinusoidal
from longctx.attention.positions.fire import FIRE
from longctx.attention.positions.relative import RelativeEmbedding
from longctx.attention.positions.rope import RoPE
from longctx.attention.positions.t5_bias import T5Bias


@dataclass(frozen=True)
class Together(Position):
    """Each scheme acts at its own place, one after the other; score terms add up."""

    schemes: tuple[Position, ...]
    """The schemes; those of one among them that is a Together are merged in."""

    def __post_init__(self):
        schemes = self.schemes
        schemes_only = isinstance(schemes, tuple) and all(isinstance(s, Position) for s in schemes)
        if not (schemes_only and schemes):
            raise ValueError(
                f"Together needs a tuple of at least 1 position scheme, not {schemes!r}"
            )
        nested = [s.schemes if isinstance(s, Together) else (s,) for s in schemes]
        object.__setattr__(self, "schemes", sum(nested, ()))
        if self.rotates and self.reads_queries:
            raise ValueError(
                f"{self} would multiply rotated queries by embeddings of distances, which mixes "
                "absolute places in: beside a rotation take a bias like T5Bias or ALiBi"
            )

    @classmethod
    def small(cls):
        return (
            cls((ConcatenatedSinusoidal(width=6), RelativeEmbedding(max_distance=5, values=True))),
            cls((RoPE(base=100.0), T5Bias(buckets=8, max_distance=20), ALiBi())),
            cls((FIRE(width=8, threshold=8.0), RelativeEmbedding(max_distance=5, per_head=False))),
        )

    @property
    def parts(self):
        return self.schemes

    @property
    def axes(self):
        return max(scheme.axes for scheme in self.schemes)

    @property
    def rotates(self):
        return any(scheme.rotates for scheme in self.schemes)

    @property
    def reads_queries(self):
        return any(scheme.reads_queries for scheme in self.schemes)

    @property
    def limit(self):
        return min((s.limit for s in self.schemes if s.limit is not None), default=None)

    def in_attention(self, heads, dim, rngs):
        return _Attentions(scheme.in_attention(heads, dim, rngs) for scheme in self.schemes)


class _Attentions(AttentionPlace):
    def __init__(self, places: Iterable[AttentionPlace]):
        self.places = nnx.List(places)

    def rotate(self, x, positions):
        for place in self.places:
            x = place.rotate(x, positions)
        return x

    def term(self):
        terms = [place.term() for place in self.places]
        present = tuple(term for term in terms if term is not None)
        return SumTerm(present) if present else None
