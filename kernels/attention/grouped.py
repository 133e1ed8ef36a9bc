"""Attention among tokens of one group, causal in what is selected: O(len members) time and memory.

Groups come from the content of tokens: clusters (Roy et al. 2021) or hash buckets (Kitaev et al.
2020). Queries and keys are sorted by group and place, and the queries that share a group and a
block of its keys are gathered into items of one size.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange
from jax import Array, lax
from jaxtyping import Float, Int

from kernels.attention.gathered import Items, attend, for_each_row, take_tokens
from kernels.attention.places import Places
from kernels.attention.spec import Pattern
from kernels.attention.term import Term


def grouped(
    q: Float[Array, "batch heads q_len dim"],
    k: Float[Array, "batch heads k_len dim"],
    v: Float[Array, "batch heads k_len dim"],
    q_group: Int[Array, "batch heads q_len"],
    k_group: Int[Array, "batch heads k_len"],
    *,
    pattern: Pattern,
    groups: int,
    term: Term | None = None,
    q_at: Places,
    k_at: Places,
    strict: bool = False,
    implementation: str | None = None,
) -> tuple[Float[Array, "batch heads q_len dim"], Float[Array, "batch heads q_len"]]:
    """Return (out, lse) of each query over the latest keys of its group up to its own place.

    A query's keys are those of its group that stand at its position or before, in its segment;
    later tokens have no say in them. `pattern` then counts in ranks among these: the latest is at
    distance 0, so `Local(w)` allows the last w of them. Nothing of size q_len x k_len is made.

    Args:
        q, k, v: as many key heads as query heads.
        q_group, k_group: 0 to groups - 1, or -1 for a token that belongs nowhere.
        pattern: causal, with a window.
        groups: how many there are, which bounds the memory.
        term: what is added to the scores, by the true distance.
        q_at, k_at: with positions.
        strict: see only keys before the own position.
        implementation: as of `attention`.

    Raises:
        ValueError: the pattern has no window, or positions are missing.
        NotImplementedError: the term isn't one of the distance alone, or adds to the values.
    """
    if pattern.window is None or q_at.positions is None or k_at.positions is None:
        raise ValueError(
            f"grouped needs a pattern with a window, not {pattern}, and positions of all tokens: "
            "give Local(members), and places from `resolved`"
        )
    call = (pattern, groups, strict, implementation)
    return _grouped(call, q, k, v, q_group, k_group, term, q_at, k_at)


Call = tuple[Pattern, int, bool, str | None]


@partial(jax.jit, static_argnums=0)  # traced once, however many layers call it
def _grouped(call: Call, q, k, v, q_group, k_group, term, q_at, k_at):
    pattern, groups, strict, implementation = call
    members = min(pattern.window or 0, k.shape[2])
    size = min(members, q.shape[2])
    q_at, k_at = (for_each_row(at, q.shape[0]) for at in (q_at, k_at))
    planned = partial(_plan, groups=groups, members=members, size=size, strict=strict)
    over_heads = jax.vmap(planned, in_axes=(0, 0, None, None))
    work = jax.vmap(over_heads)(q_group, k_group, q_at, k_at)
    q_items = Items.of(q_at, work.queries, work.q_ranks)
    k_items = Items.of(k_at, work.keys, work.k_ranks)
    out, lse = attend(
        q, k, v, q_items, k_items, pattern=pattern, term=term, implementation=implementation
    )
    out = rearrange(out, "batch heads items slots dim -> batch heads (items slots) dim")
    lse = rearrange(lse, "batch heads items slots -> batch heads (items slots) 1")
    return take_tokens(out, work.places), take_tokens(lse, work.places, -jnp.inf)[..., 0]


class Work(NamedTuple):
    """Which tokens each item gathers; a number past the last token is nobody.

    Ranks count the keys of a group in their order, from the first key of the item; -1 is nobody.
    """

    queries: Int[Array, "*rows items size"]
    keys: Int[Array, "*rows items two_blocks"]
    q_ranks: Int[Array, "*rows items size"]
    k_ranks: Int[Array, "*rows items two_blocks"]
    places: Int[Array, "*rows q_len"]
    """Where each query lies among all items' queries."""


def _plan(
    q_group: Int[Array, " q_len"],
    k_group: Int[Array, " k_len"],
    q_at: Places,
    k_at: Places,
    *,
    groups: int,
    members: int,
    size: int,
    strict: bool,
) -> Work:
    """Return the items of one row and head: up to `size` queries and two blocks of `members` keys.

    Of a group with n keys the queries see at most ceil(n / members) different pairs of blocks, and
    each pair fills all of its items but one: that bounds the number of items.
    """
    q_len, k_len = len(q_group), len(k_group)
    items = min(q_len, -(-q_len // size) + -(-k_len // members) + groups)
    group, is_key, index = _sorted(q_group, k_group, q_at, k_at, groups, strict)

    keys_so_far = jnp.cumsum(is_key)
    first = _since(_changes(group), keys_so_far - is_key)
    rank = keys_so_far - first - 1  # of a query: that of the last key which it sees
    block = rank // members
    asks = ~is_key & (rank >= 0) & (group < groups)
    asked = jnp.cumsum(asks) - 1
    turn = asked - _since(_changes(group) | _changes(block), asked + 1 - asks)
    slot = turn % size
    item = jnp.cumsum(asks & (slot == 0)) - 1

    at = (jnp.where(asks, item, items), slot)
    start = (block - 1) * members
    of_item = jnp.full(items, k_len).at[at[0]]
    low = of_item.set(first, mode="drop")[:, None]
    key = of_item.set(first + start, mode="drop")[:, None] + jnp.arange(2 * members)
    seen = (key >= low) & (key < k_len)
    keys = jnp.zeros(k_len, jnp.int32).at[jnp.where(is_key, keys_so_far - 1, k_len)]
    keys = keys.set(index, mode="drop")[jnp.clip(key, 0, k_len - 1)]
    places = jnp.full(q_len, items * size).at[jnp.where(asks, index, q_len)]
    return Work(
        queries=jnp.full((items, size), q_len).at[at].set(index, mode="drop"),
        keys=jnp.where(seen, keys, k_len),
        q_ranks=jnp.full((items, size), -1).at[at].set(rank - start, mode="drop"),
        k_ranks=jnp.where(seen, jnp.arange(2 * members), -1),
        places=places.set(item * size + slot, mode="drop"),
    )


def _sorted(
    q_group: Array, k_group: Array, q_at: Places, k_at: Places, groups: int, strict: bool
) -> tuple[Array, Array, Array]:
    """Return (group, is key, index) of all queries and keys by group, segment and position.

    At one position the key comes first, and the query if it may not see that key.
    """
    assert k_at.positions is not None
    assert q_at.positions is not None
    position = jnp.concatenate([k_at.positions, q_at.positions])
    group = jnp.concatenate([k_group, q_group])
    group = jnp.where((group < 0) | (position < 0), groups, group)
    is_key = jnp.arange(len(group)) < len(k_group)
    index = jnp.concatenate([jnp.arange(len(k_group)), jnp.arange(len(q_group))])
    order = [group, position, is_key if strict else ~is_key]
    if q_at.segments is not None and k_at.segments is not None:
        order.insert(1, jnp.concatenate([k_at.segments, q_at.segments]))
    group, *_, is_key, index = lax.sort((*order, is_key, index), num_keys=len(order))
    return group, is_key, index


def _changes(x: Int[Array, " len"]) -> Array:
    """Return where an entry differs from the one before it."""
    return jnp.concatenate([jnp.ones(1, bool), x[1:] != x[:-1]])


def _since(starts: Array, count: Int[Array, " len"]) -> Int[Array, " len"]:
    """Return the value that a rising count had at the last start."""
    return lax.cummax(jnp.where(starts, count, 0))
