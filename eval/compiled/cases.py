"""What is compiled: attention and its named peers, training steps, and steps of generation.

A case is a frozen dataclass that JSON can carry into the process that compiles it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from kernels import topk
from kernels.attention import Pattern, Places, attention
from longctx.attention.patterns import Beyond, Causal, Local
from longctx.attention.positions import ALiBi, NoPosition, Position, RelativeEmbedding, T5Bias
from longctx.train.config import Train
from longctx.train.state import TrainState
from longctx.train.step import make_step


class Program(NamedTuple):
    """A jitted function and the shapes that it is compiled for."""

    function: Any
    shapes: tuple[Any, ...]


class Case(ABC):
    """Something that is compiled."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in tables and in records."""

    @abstractmethod
    def build(self) -> Program:
        """Return the program, without arrays of its size.

        Raises:
            NotImplementedError: there is no such program.
        """


Direction = Literal["forward", "backward"]


class Setting(NamedTuple):
    """One kind of attention."""

    position: Callable[[int], Position] = lambda length: NoPosition()
    pattern: Pattern = Causal()
    kv_heads: int = 8
    segments: bool = False


SETTINGS: dict[str, Setting] = {
    "plain": Setting(),
    "relative": Setting(lambda length: RelativeEmbedding(max_distance=length)),
    "t5": Setting(lambda length: T5Bias()),
    "alibi": Setting(lambda length: ALiBi()),
    "local": Setting(pattern=Local(1024)),
    "segments": Setting(segments=True),
    "gqa": Setting(kv_heads=2),
}
"""Kinds of attention by name; eight query heads."""
HEADS = 8
LENGTHS = (4096, 32768, 131072)
DIMS = (64, 128)


@dataclass(frozen=True)
class AttentionCase(Case):
    """Our attention as the target's preferred implementation serves it, in bfloat16."""

    direction: Direction
    setting: str
    dim: int
    length: int

    @property
    def name(self):
        return f"{self.direction}/{self.setting}/{self.dim}/{self.length}"

    def build(self):
        setting, length = SETTINGS[self.setting], self.length
        place = partial(setting.position(length).in_attention, HEADS, self.dim)
        term = jax.eval_shape(lambda: place(nnx.Rngs(0)).term())
        segments: Any = _shape(1, length, dtype=jnp.int32) if setting.segments else None
        q = _shape(1, HEADS, length, self.dim)
        k = _shape(1, setting.kv_heads, length, self.dim)

        def forward(q, k, v, term, at):
            return attention(q, k, v, pattern=setting.pattern, term=term, q_at=at)

        return _directed(forward, self.direction, (q, k, k, term), Places(segments=segments))


@dataclass(frozen=True)
class PeerCase(Case):
    """Attention kernels that come with JAX: causal, bfloat16, 8 heads.

    `splash` is for TPUs, with blocks of 512 (jax.experimental.pallas.ops.tpu.splash_attention);
    `mha` for GPUs, with its default blocks (jax.experimental.pallas.ops.gpu.attention).
    """

    peer: Literal["splash", "mha"]
    direction: Direction
    dim: int
    length: int

    @property
    def name(self):
        return f"{self.peer}/{self.direction}/{self.dim}/{self.length}"

    def build(self):
        kernel = {"splash": _splash, "mha": _mha}[self.peer](self.length)
        shapes = {"splash": (HEADS, self.length), "mha": (1, self.length, HEADS)}
        return _directed(kernel, self.direction, 3 * (_shape(*shapes[self.peer], self.dim),))


def _splash(length: int) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    mask = splash.MultiHeadMask([splash.CausalMask((length, length))] * HEADS)
    blocks = splash.BlockSizes(
        block_q=512, block_kv=512, block_kv_compute=512,
        block_q_dkv=512, block_kv_dkv=512, block_kv_dkv_compute=512,
        block_q_dq=512, block_kv_dq=512,
    )  # fmt: skip
    return splash.make_splash_mha_single_device(mask=mask, block_sizes=blocks)


def _mha(length: int) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.gpu.attention import mha

    return lambda q, k, v: mha(q, k, v, None, causal=True)


KEYS = (65536, 262144, 1048576)
"""How many keys the search for the nearest has."""


@dataclass(frozen=True)
class NearestCase(Case):
    """The 32 nearest of many bfloat16 keys, beyond a local window, for 512 queries of 8 heads."""

    implementation: str
    keys: int

    @property
    def name(self):
        return f"topk/{self.implementation}/{self.keys}"

    def build(self):
        pattern = Beyond(Local(512), size=self.keys)
        recall = 0.95 if self.implementation == "approximate" else 1.0

        def search(q, k):
            return topk.nearest(
                q, k, count=32, pattern=pattern, recall=recall, implementation=self.implementation
            )

        return Program(
            jax.jit(search), (_shape(1, HEADS, 512, 64), _shape(1, HEADS, self.keys, 64))
        )


def _directed(forward: Callable, direction: Direction, inputs: tuple, *others: Any) -> Program:
    """Return a program of the function, or of its gradient by all inputs but the others."""
    if direction == "forward":
        return Program(jax.jit(forward), (*inputs, *others))
    total = lambda *given: forward(*given).astype(jnp.float32).sum()  # noqa: E731
    by = tuple(range(len(inputs)))
    return Program(jax.jit(jax.grad(total, argnums=by)), (*inputs, *others))


def _shape(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True)
class TrainCase(Case):
    """One step of training of an experiment."""

    experiment: str
    config: Train

    @property
    def name(self):
        return f"train/{self.experiment}"

    def build(self):
        config = self.config
        graphdef, params = _network(config)
        optimizer = config.optimizer.build(config.steps)

        def initial(params):
            return TrainState.create(params, optimizer, config.carry(nnx.merge(graphdef, params)))

        state = jax.eval_shape(initial, params)
        batch = next(config.data.training_batches(config.window, config.batch, config.seed))
        step = make_step(graphdef, optimizer, config.accumulate, config.seed)
        return Program(step, (state, jax.tree.map(_like, batch)))


@dataclass(frozen=True)
class GenerateCase(Case):
    """One token for each row of a batch, with caches as long as an experiment's window."""

    experiment: str
    config: Train

    @property
    def name(self):
        return f"generate/{self.experiment}"

    def build(self):
        config = self.config
        graphdef, params = _network(config)

        def initial(params):
            return nnx.merge(graphdef, params).init_state(config.batch, config.window)

        def step(params, state, tokens, coordinates):
            at = Places(state.length[:, None], coordinates=coordinates)
            logits, state = nnx.merge(graphdef, params)(tokens, at, state)
            return logits, state

        axes = config.model.axes
        tokens = _shape(config.batch, 1, dtype=jnp.int32)
        coordinates = _shape(config.batch, 1, axes, dtype=jnp.int32) if axes else None
        state = jax.eval_shape(initial, params)
        return Program(jax.jit(step, donate_argnums=1), (params, state, tokens, coordinates))


def _network(config: Train) -> tuple[Any, Any]:
    vocab = len(config.data.vocabulary().names)
    model = nnx.eval_shape(lambda: config.model.build(vocab, config.compute_dtype, config.seed))
    return nnx.split(model)


def _like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


def kernel_cases(platform: str) -> list[Case]:
    """Return all cases of attention and nearest keys that a platform has, peers included."""
    peer = "splash" if platform == "tpu" else "mha"
    directions: tuple[Direction, ...] = ("forward", "backward")
    ours = [
        AttentionCase(direction, setting, dim, length)
        for setting in SETTINGS
        for direction in directions
        for dim in DIMS
        for length in LENGTHS
    ]
    # At one length: splash attention takes minutes to prepare the masks of long sequences.
    peers = [PeerCase(peer, direction, dim, LENGTHS[0]) for direction in directions for dim in DIMS]
    names = ["reference", "blockwise", "approximate", *(["pallas_gpu"] * (platform == "gpu"))]
    searches = [NearestCase(name, keys) for name in names for keys in KEYS]
    return [*ours, *peers, *searches]


def named_cases(platform: str, words: Sequence[str]) -> list[Case]:
    """Return those of `kernel_cases` whose names contain one of the words; all without words.

    Raises:
        ValueError: there is none.
    """
    cases = kernel_cases(platform)
    found = [case for case in cases if not words or any(word in case.name for word in words)]
    if not found:
        raise ValueError(f"no case contains {words}; there are {', '.join(c.name for c in cases)}")
    return found
