"""Learned embeddings of the distance in time and pitch (Music Transformer, Huang et al. 2018)."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float, Int

from kernels.attention.places import Places
from kernels.attention.term import Term, score_entries
from longctx.attention.positions.base import AttentionPlace, Position, require_at_least


@dataclass(frozen=True)
class RelativePitchTime(Position):
    """The score rises by `q . e_time[t_q - t_k] + q . e_pitch[p_q - p_k]`.

    The vocabulary says when each token sounds and how high. It says nothing of the order within one
    time, so this goes well with a `RelativeEmbedding`, and the paper has it in the first layer
    only, where a token's vector still means that token.
    """

    max_time: int = 256
    """How many time distances are told apart; further keys get the last embedding, later ones the
    first."""
    max_pitch: int = 48
    """The widest interval told apart, up and down, in semitones; wider ones count as this. Pairs in
    which a token has no pitch (below 0) share an embedding of their own."""
    per_head: bool = True
    """Tables for every head; otherwise one pair of them shared by the heads."""

    paper = "Huang et al. 2018"

    def __post_init__(self):
        require_at_least(self, max_time=1, max_pitch=0)

    @classmethod
    def small(cls):
        return cls(max_time=6, max_pitch=5), cls(max_time=6, max_pitch=5, per_head=False)

    @property
    def reads_queries(self):
        return True

    @property
    def axes(self):
        return 2

    def in_attention(self, heads, dim, rngs):
        return _Tables(self, heads if self.per_head else 1, dim, rngs)


class _Tables(AttentionPlace):
    def __init__(self, config: RelativePitchTime, tables: int, dim: int, rngs: nnx.Rngs):
        def table(entries: int) -> nnx.Param:
            shape = (tables, entries, dim)
            return nnx.Param(jax.random.normal(rngs.params(), shape) * dim**-0.5)

        self.time = table(config.max_time)
        self.pitch = table(2 * config.max_pitch + 2)

    def term(self) -> "PitchTimeTerm":
        return PitchTimeTerm(self.time[...], self.pitch[...])


@partial(jax.tree_util.register_dataclass, data_fields=["time", "pitch"], meta_fields=[])
@dataclass(frozen=True)
class PitchTimeTerm(Term):
    """The score term of `RelativePitchTime`."""

    time: Float[Array, "tables times dim"]
    """By distance from 0 up."""
    pitch: Float[Array, "tables intervals dim"]
    """By interval from the widest fall of the key to the query up, then that of no interval."""

    def scores(self, q, q_at, k_at):
        q_time, q_pitch = _time_and_pitch(q_at)
        k_time, k_pitch = _time_and_pitch(k_at)
        distance = jnp.clip(q_time[:, :, None] - k_time[:, None], 0, self.time.shape[1] - 1)
        widest = self.pitch.shape[1] // 2 - 1
        interval = jnp.clip(q_pitch[:, :, None] - k_pitch[:, None], -widest, widest) + widest
        pitched = (q_pitch >= 0)[:, :, None] & (k_pitch >= 0)[:, None]
        interval = jnp.where(pitched, interval, self.pitch.shape[1] - 1)
        return score_entries(q, self.time, distance) + score_entries(q, self.pitch, interval)


def _time_and_pitch(at: Places) -> tuple[Int[Array, "rows len"], Int[Array, "rows len"]]:
    if at.coordinates is None or at.coordinates.shape[-1] != 2:
        given = "none" if at.coordinates is None else f"{at.coordinates.shape[-1]}"
        raise ValueError(
            f"RelativePitchTime needs 2 coordinates of each token, its time and pitch, but {given} "
            "came: give Places(coordinates=...), as a vocabulary with `coordinates` supplies them"
        )
    return at.coordinates[..., 0], at.coordinates[..., 1]
