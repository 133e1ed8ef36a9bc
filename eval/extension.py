"""What it costs to add tokens to those that a layer remembers.

    python -m eval.extension

prints two tables. The first counts the pairs of a query and a key that are computed to add m tokens
to n that are cached, beside a pass over all n + m. The second has the memory and the time per token
of a ring, and of a cache of every token, at growing positions.
"""

import argparse
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from eval.counted import counted
from eval.markdown import conditions, table
from eval.usage import Result, busy_cores, measure
from kernels.attention import Places
from longctx.attention.cache import KVCache
from longctx.attention.layer import Attention, AttentionLayer
from longctx.attention.patterns import Causal, Local, Pattern

MODEL, HEADS = 256, 8
OLD, NEW = (0, 1024, 4096, 16384), (1, 64, 1024)
POSITIONS = (1024, 4096, 16384, 65536)
TOKENS: dict[Pattern, int] = {Local(256): 2048, Causal(): 16}
"""How many tokens are decoded in one measured run: enough for the clock, few enough to wait."""
EXTENSION = ("n", "m", "pairs needed", "pairs computed", "of nm + m²", "pass over n + m", "times")
DECODING = ("pattern", "position", "cache MB", "CPU ms per token", "wall ms per token")


def layer(
    pattern: Pattern, implementation: str | None = None, model: int = MODEL
) -> AttentionLayer:
    """Return an attention layer with fresh parameters."""
    config = Attention(heads=HEADS, pattern=pattern, implementation=implementation)
    return config.build(model, jnp.float32, nnx.Rngs(0))


def places(first: int, count: int) -> Places:
    """Return the positions of `count` tokens from `first` on."""
    return Places(jnp.arange(first, first + count, dtype=jnp.int32)[None])


def filled(mixer: AttentionLayer, old: int, capacity: int) -> KVCache:
    """Return a cache that holds `old` random tokens."""
    k, v = (jax.random.normal(jax.random.key(i), (1, HEADS, old, mixer.dim)) for i in range(2))
    return mixer.init_state(1, capacity).extend(k, v, places(0, old))[3]


def extension_pairs(pattern: Pattern, old: int, new: int, model: int = MODEL) -> int:
    """Return the pairs that a layer computes, one head alone, for `new` tokens after `old`.

    The kernel that serves the call by default reports them while it runs; what the slots hold makes
    no difference to it, so they are left empty.
    """
    pattern, asked = counted(pattern)
    mixer = layer(pattern, model=model)
    state = mixer.init_state(1, old + new)
    jax.block_until_ready(jax.jit(mixer)(jnp.ones((1, new, model)), places(old, new), state))
    jax.effects_barrier()
    return sum(asked)


def pass_pairs(pattern: Pattern, length: int, model: int = MODEL) -> int:
    """Return the pairs of one head that blockwise computes in a pass over a whole sequence."""
    pattern, asked = counted(pattern)
    jax.block_until_ready(jax.jit(layer(pattern, "blockwise", model))(jnp.ones((1, length, model))))
    jax.effects_barrier()
    return sum(asked)


def extension_row(old: int, new: int) -> list[str]:
    """Return a line of the table of extensions."""
    computed, whole = extension_pairs(Causal(), old, new), pass_pairs(Causal(), old + new)
    return [
        f"{old:,}",
        f"{new:,}",
        f"{old * new + new * (new + 1) // 2:,}",
        f"{computed:,}",
        f"{computed / (old * new + new * new):.2f}",
        f"{whole:,}",
        f"{whole / computed:.1f}",
    ]


def decoding(pattern: Pattern, position: int, tokens: int, steps: int = 5) -> Result:
    """Measure a layer that takes one token after the other, from a position on."""
    mixer = layer(pattern)
    state = filled(mixer, position, position + tokens)

    def one_token(state: KVCache, at: Array):
        y, later = mixer(jnp.ones((1, 1, MODEL)), Places(at[None, None]), state)
        assert later is not None
        return later, y

    @partial(jax.jit, donate_argnums=0)
    def run(state: KVCache):
        return jax.lax.scan(one_token, state, position + jnp.arange(tokens))

    def again():
        nonlocal state
        state, _ = jax.block_until_ready(run(state))

    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    return {"tokens": tokens, "cache_bytes": held} | measure(again, steps)


def decoding_row(pattern: Pattern, position: int) -> list[str]:
    """Return a line of the table of single tokens."""
    result = decoding(pattern, position, TOKENS[pattern])
    cpu, wall = (result[f"{kind}_seconds"] / result["tokens"] * 1e3 for kind in ("cpu", "wall"))
    memory = f"{result['cache_bytes'] / 1e6:.2f}"
    return [f"`{pattern}`", f"{position:,}", memory, f"{cpu:.3f}", f"{wall:.3f}"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.extension", description=__doc__)
    parser.parse_args(arguments)
    print(conditions("python -m eval.extension", busy_cores()), end="\n\n")
    print(table(EXTENSION, [extension_row(old, new) for old, new in product(OLD, NEW)]))
    rows = [decoding_row(p, at) for p in TOKENS for at in POSITIONS]
    print(f"\n{table(DECODING, rows)}")


if __name__ == "__main__":
    main()
