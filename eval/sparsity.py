"""Whether the time of blockwise attention follows the tiles that its pattern leaves.

    python -m eval.sparsity

prints, for each pattern at one length, the live tiles, the time of a forward and a backward pass,
and the straight line through the times.
"""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from eval.markdown import conditions, table
from eval.usage import busy_cores, measure
from kernels.attention import attention
from kernels.attention.blockwise import live_tiles
from kernels.cost import useful_pairs
from longctx.attention.patterns import (
    Causal,
    Dilated,
    Fixed,
    Full,
    Global,
    Local,
    Pattern,
    Prefix,
    Strided,
)

LENGTH, HEADS, DIM = 8192, 2, 32
PATTERNS: dict[str, Pattern] = {
    "Full()": Full(),
    "Prefix(4096)": Prefix(4096),
    "Causal()": Causal(),
    "Strided(256)": Strided(256),
    "Fixed(256, 8)": Fixed(256, 8),
    "Fixed(1024, 8)": Fixed(1024, 8),
    "Fixed(1024, 0)": Fixed(1024, 0),
    "Dilated(256, 8)": Dilated(256, 8),
    "Local(2048)": Local(2048),
    "Local(512)": Local(512),
    "Local(256)": Local(256),
    "Local(256) | Global(64) & Causal()": Local(256) | Global(64) & Causal(),
}
HEADINGS = (
    "pattern", "pairs allowed", "live tiles", "of all", "CPU s", "wall s", "CPU µs per live tile",
    "temp MB",
)  # fmt: skip


@dataclass(frozen=True)
class Sparse:
    """What one pattern leaves, and what it costs."""

    pairs: float
    """Share of all pairs that the pattern allows."""
    live: int
    """Tiles that are computed."""
    tiles: int
    """Tiles that there are."""
    cpu_seconds: float
    """Of a forward and a backward pass."""
    wall_seconds: float
    """Of the same passes."""
    temp_bytes: int
    """What XLA sets aside for intermediate values."""


def compiled(pattern: Pattern, length: int) -> tuple[Callable[[], object], int]:
    """Return a forward and backward pass of blockwise attention, and its temporary bytes."""
    q, k, v = (jax.random.normal(jax.random.key(i), (1, HEADS, length, DIM)) for i in range(3))

    def loss(q, k, v):
        out = attention(q, k, v, pattern=pattern, implementation="blockwise")
        assert isinstance(out, jax.Array)
        return jnp.square(out).sum()

    run = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, k, v).compile()
    memory = run.memory_analysis()
    assert memory is not None
    return lambda: jax.block_until_ready(run(q, k, v)), memory.temp_size_in_bytes


def measured(patterns: Iterable[Pattern], length: int, steps: int) -> list[Sparse]:
    """Return what passes cost: the least of several, taken in turns.

    Others on the machine only ever add to the time, and in turns they don't hit one pattern alone.
    """
    passes = [(pattern, *compiled(pattern, length)) for pattern in patterns]
    turns = [[measure(step, 1, warmup=0) for _, step, _ in passes] for _ in range(steps + 1)][1:]
    results = []
    for (pattern, _, temp_bytes), runs in zip(passes, zip(*turns, strict=True), strict=True):
        cpu, wall = (min(run[f"{kind}_seconds"] for run in runs) for kind in ("cpu", "wall"))
        live = live_tiles(pattern, length, length)
        allowed = useful_pairs(pattern, length, length) / length**2
        results.append(Sparse(allowed, *live, cpu, wall, temp_bytes))
    return results


def row(name: str, found: Sparse) -> list[str]:
    """Return a line of the table."""
    return [
        f"`{name.replace('|', chr(92) + '|')}`",
        f"{found.pairs:.1%}",
        str(found.live),
        f"{found.live / found.tiles:.1%}",
        f"{found.cpu_seconds:.3f}",
        f"{found.wall_seconds:.3f}",
        f"{found.cpu_seconds / found.live * 1e6:.0f}",
        f"{found.temp_bytes / 1e6:.1f}",
    ]


def line(results: list[Sparse]) -> str:
    """Return the straight line through the times, and how well they follow the live tiles."""
    live = np.array([found.live for found in results])
    seconds = np.array([found.cpu_seconds for found in results])
    slope, start = np.polyfit(live, seconds, 1)
    each = seconds / live * 1e6
    return (
        f"CPU s = {start:.4f} + {slope * 1e6:.0f} µs x live tiles, correlation "
        f"{np.corrcoef(live, seconds)[0, 1]:.4f}; time per live tile {each.min():.0f} to "
        f"{each.max():.0f} µs, median {np.median(each):.0f}."
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.sparsity", description=__doc__)
    parser.add_argument("--length", type=int, default=LENGTH, help="tokens")
    parser.add_argument("--steps", type=int, default=7, help="passes, of which the least is shown")
    options = parser.parse_args(arguments)
    load = busy_cores()
    results = measured(PATTERNS.values(), options.length, options.steps)
    print(conditions("python -m eval.sparsity", load), end="\n\n")
    print(table(HEADINGS, [row(*pair) for pair in zip(PATTERNS, results, strict=True)]))
    print(f"\n{line(results)}")


if __name__ == "__main__":
    main()
