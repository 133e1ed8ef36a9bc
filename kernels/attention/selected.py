"""Attention among tokens that the whole sequence selects, as in the papers of routing and LSH.

Who is selected depends on later tokens too: pairs are causal, the likelihood is not. `grouped` is
the causal counterpart.
"""

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import Array, lax
from jaxtyping import Float, Int

from kernels.attention.gathered import Items, attend, for_each_row, take_tokens
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.attention.term import Term


def clustered(
    q: Float[Array, "batch heads len dim"],
    k: Float[Array, "batch heads len dim"],
    v: Float[Array, "batch heads len dim"],
    q_score: Float[Array, "batch heads groups len"],
    k_score: Float[Array, "batch heads groups len"],
    *,
    pattern: Pattern,
    members: int,
    at: Places,
    term: Term | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch heads len dim"], Float[Array, "batch heads len"]]:
    """Return (out, lse) where each group takes the `members` tokens that score highest in it.

    (Roy et al. 2021, algorithm 1.) A token in several groups gets the mean of what it finds in
    them and of the logsumexps; one that sees no key anywhere gets 0 and -inf. `at` holds positions.
    """
    at = for_each_row(at, q.shape[0])
    assert at.positions is not None
    there = (at.positions >= 0)[:, None, None]
    length = q.shape[2]

    def items(score: Array) -> Items:
        best, tokens = lax.top_k(jnp.where(there, score, -jnp.inf), min(members, length))
        return Items.of(at, jnp.sort(jnp.where(best > -jnp.inf, tokens, length), axis=-1))

    q_items, k_items = items(q_score), items(k_score)
    out, lse = attend(
        q, k, v, q_items, k_items, pattern=pattern, term=term, implementation=implementation
    )
    saw = lse > -jnp.inf
    found = jnp.concatenate([out, lse[..., None], saw[..., None]], axis=-1).astype(jnp.float32)
    found = jnp.where(saw[..., None], found, 0.0)
    found = rearrange(found, "batch heads groups slots found -> batch heads (groups slots) found")
    tokens = rearrange(q_items.tokens, "batch heads groups slots -> batch heads (groups slots)")
    add = jax.vmap(jax.vmap(lambda x, i: jnp.zeros((length, x.shape[1])).at[i].add(x, mode="drop")))
    out, lse, count = jnp.split(add(found, tokens), (q.shape[3], q.shape[3] + 1), axis=-1)
    safe = jnp.maximum(count, 1.0)
    return (out / safe).astype(q.dtype), jnp.where(count > 0, lse / safe, -jnp.inf)[..., 0]


def chunked(
    q: Float[Array, "batch heads len dim"],
    k: Float[Array, "batch heads len dim"],
    v: Float[Array, "batch heads len dim"],
    group: Int[Array, "batch heads len"],
    *,
    pattern: Pattern,
    members: int,
    at: Places,
    term: Term | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch heads len dim"], Float[Array, "batch heads len"]]:
    """Return (out, lse) over earlier keys of the group in the own and the previous chunk.

    (Kitaev et al. 2020, section 2.) Chunks cut the tokens, sorted by group and index, into
    `members` each. No token sees itself. `at` holds positions.
    """
    at = for_each_row(at, q.shape[0])
    assert at.positions is not None
    size = min(members, q.shape[2])
    group = jnp.where((at.positions >= 0)[:, None], group, jnp.iinfo(jnp.int32).max)
    tokens = jnp.argsort(group, axis=-1, stable=True)
    place = jnp.argsort(tokens, axis=-1)
    q_items, k_items = _chunks(at, tokens, _runs(at, group, tokens), size)
    out, lse = attend(
        q, k, v, q_items, k_items, pattern=pattern, term=term, implementation=implementation
    )
    flat = "batch heads items slots dim -> batch heads (items slots) dim"
    out, lse = (rearrange(x, flat) for x in (out, lse[..., None]))
    return take_tokens(out, place), take_tokens(lse, place, -jnp.inf)[..., 0]


def _runs(at: Places, group: Array, tokens: Array) -> Int[Array, "batch heads len"]:
    """Number the runs of sorted tokens that share a group and a segment."""
    kinds = [jnp.take_along_axis(group, tokens, axis=-1)]
    if at.segments is not None:
        kinds.append(jax.vmap(lambda x, i: x[i])(at.segments, tokens))
    return jnp.cumsum(sum(jnp.diff(kind, axis=-1, prepend=-1) != 0 for kind in kinds) > 0, axis=-1)


def _chunks(at: Places, tokens: Array, runs: Array, size: int) -> tuple[Items, Items]:
    """Return chunks of sorted tokens as queries, and each with the chunk before it as keys."""
    more = [(0, 0), (0, 0), (0, -tokens.shape[-1] % size)]
    cut = "batch heads (items slots) -> batch heads items slots"
    nobody = tokens.shape[-1]
    own, run = (
        rearrange(jnp.pad(x, more, constant_values=nobody), cut, slots=size) for x in (tokens, runs)
    )
    before = [(0, 0), (0, 0), (1, 0), (0, 0)]
    both, both_runs = (
        jnp.concatenate([jnp.pad(x, before, constant_values=nobody)[:, :, :-1], x], axis=-1)
        for x in (own, run)
    )
    queries = Items.of(at, own)
    order = jnp.maximum(queries.order - 1, -1)  # a query sees what is before it, not itself
    return (
        queries._replace(order=order, segments=run),
        Items.of(at, both)._replace(segments=both_runs),
    )
