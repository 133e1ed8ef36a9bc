"""Cases of `eval.speed`: our own Music Transformer, trained and sampled as the library does it."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from eval.usage import Result, cpu_seconds, measure
from kernels.attention import Places
from kernels.topk import nearest
from longctx.attention.layer import Attention
from longctx.attention.patterns import Causal, Local
from longctx.attention.positions import NoPosition, Position, RelativeEmbedding, RoPE
from longctx.data.base import DataConfig, Split
from longctx.data.batch import Batch
from longctx.generate import generate
from longctx.mixer import MixerConfig
from longctx.mixers import LSH, Memorizing, Routing
from longctx.sampling import Sampler
from longctx.train.config import Train
from longctx.train.loop import initialise
from longctx.train.step import compile_step, make_step
from longctx.transformer import Transformer

POSITIONS: dict[str, Callable[[int], Position]] = {
    "relative": RelativeEmbedding,
    "none": lambda length: NoPosition(),
    "rope": lambda length: RoPE(),
}
"""Position schemes by name, for sequences of some length."""
MECHANISMS: dict[str, Callable[[int, int, Position], tuple[MixerConfig, ...]]] = {
    "full": lambda length, heads, table: (Attention(heads, position=table),) * 5,
    "local": lambda length, heads, table: (_local(heads, table),) * 5,
    "routing": lambda length, heads, table: (_routing(length, heads, table),) * 5,
    "lsh": lambda length, heads, table: (
        LSH(heads, buckets=2 * (length // 128), window=64, position=table),
    ) * 5,
    "memory": lambda length, heads, table: (
        *(_local(heads, table),) * 3,
        Memorizing(heads, position=table, window=256, memory=length),
        _local(heads, table),
    ),
}  # fmt: skip
"""Five layers by name, for a length, a number of heads and a position scheme."""


def _local(heads: int, table: Position) -> Attention:
    return Attention(heads, position=table, pattern=Local(256))


def _routing(length: int, heads: int, table: Position) -> Routing:
    """Return routing in half of the heads; clusters and window are the length's square root."""
    root = 2 ** round(math.log2(length) / 2)
    return Routing(heads, heads // 2, clusters=root, window=root, position=table)


@dataclass(frozen=True)
class Numbers:
    """A vocabulary of numbers; it spells nothing."""

    size: int
    stride: int = 1
    boundary: ClassVar[int] = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.size)))

    def encode(self, piece: Sequence[int]) -> np.ndarray:
        return np.asarray(piece, np.int32)

    def decode(self, tokens: np.ndarray) -> list[int]:
        return tokens.tolist()


@dataclass(frozen=True)
class RandomTokens(DataConfig):
    """No data: batches of random tokens are drawn as they are needed."""

    vocab: int = 388

    def vocabulary(self) -> Numbers:
        return Numbers(self.vocab)

    def sequences(self, split: Split) -> list[np.ndarray]:
        return []

    def batch(self, random: np.random.Generator, batch: int, length: int) -> Batch:
        """Return new sequences whose every token is to be predicted."""
        tokens = random.integers(self.vocab, size=(batch, length + 1), dtype=np.int32)
        return Batch(tokens[:, :-1], tokens[:, 1:], np.ones((batch, length), np.float32))


def experiment(
    length: int,
    batch: int,
    position: str = "relative",
    dtype: Literal["float32", "bfloat16"] = "float32",
    mechanism: str | None = None,
    **size: Any,
) -> Train:
    """Return the config that is measured; the peers have the same size (see `PeerConfig`).

    With a `mechanism` the layers are its own, and the relative table ends at a distance of 256.
    """
    size = {"layers": 5, "model": 256, "heads": 8, "hidden": 1024, "vocab": 388} | size
    data = RandomTokens(size.pop("vocab"))
    heads = size.pop("heads")
    if mechanism is None:
        mixer = Attention(heads=heads, position=POSITIONS[position](length))
    else:
        mixer = MECHANISMS[mechanism](length, heads, POSITIONS[position](256))
    model = Transformer(mixer=mixer, tied=True, dropout=0.0, **size)
    return Train(data=data, model=model, batch=batch, window=length, dtype=dtype)


def training(*choice, steps: int = 5, **named) -> Result:
    """Measure training steps of `experiment(...)` on a new batch each, and their compilation."""
    config = experiment(*choice, **named)
    graphdef, optimizer, state = initialise(config)
    random = np.random.default_rng(config.seed)
    assert isinstance(config.data, RandomTokens)
    draw = partial(config.data.batch, random, config.batch, config.window)
    start = time.perf_counter()
    step = make_step(graphdef, optimizer, config.accumulate, config.seed)
    compiled = compile_step(step, state, draw())
    compile_seconds = time.perf_counter() - start

    def train_step() -> float:
        nonlocal state
        state, metrics = compiled(state, draw())
        return float(metrics.loss)

    return {
        "tokens": config.window * config.batch,
        "compile_seconds": compile_seconds,
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        **measure(train_step, steps),
    }


def lookup(keys: int, queries: int = 512, heads: int = 8, dim: int = 64, count: int = 32) -> Result:
    """Measure one search for the nearest keys of a memory, in float32."""
    make = partial(jax.random.normal, dtype=np.float32)
    q = make(jax.random.key(0), (1, heads, queries, dim))
    k = make(jax.random.key(1), (1, heads, keys, dim))
    start = time.perf_counter()
    places = [Places(jnp.arange(n)[None]) for n in (keys + queries, keys)]
    places[0] = jax.tree.map(lambda x: x[:, keys:], places[0])
    search = jax.jit(partial(nearest, count=count, pattern=Causal()))
    compiled = search.lower(q, k, q_at=places[0], k_at=places[1]).compile()
    compile_seconds = time.perf_counter() - start
    memory = compiled.memory_analysis()
    assert memory is not None
    found = lambda: jax.block_until_ready(compiled(q, k, q_at=places[0], k_at=places[1]))  # noqa: E731
    return {
        "tokens": queries,
        "compile_seconds": compile_seconds,
        "temp_bytes": memory.temp_size_in_bytes,
        **measure(found, steps=2, warmup=1),
    }


def generation(length: int, *choice, steps: int = 3, **named) -> Result:
    """Measure the sampling of whole sequences, of which one token each is given.

    The first sampling compiles: `first_*` is its time, `compile_seconds` how much longer it took
    than the median of the later ones.
    """
    config = experiment(length, *choice, **named)
    graphdef, _, state = initialise(config)
    params = jax.block_until_ready(state.params)
    del state  # the optimizer's part is as large as two more models
    prompts = [np.array([1 + i], np.int32) for i in range(config.batch)]
    sample = partial(
        generate, graphdef, params, prompts, length=length - 1, boundary=-1, sampler=Sampler()
    )
    cpu_start, wall_start = cpu_seconds(), time.perf_counter()
    sample()
    wall = time.perf_counter() - wall_start
    cpu = cpu_seconds() - cpu_start
    result = measure(sample, steps, warmup=0)
    return {
        "tokens": length * config.batch,
        "first_cpu_seconds": cpu,
        "first_wall_seconds": wall,
        "compile_seconds": max(0.0, wall - result["wall_seconds"]),
        **result,
    }
