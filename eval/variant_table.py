"""What the table of variants says of each, found by trying it in a layer of one size."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from kernels.attention import IMPLEMENTATIONS, Pattern, Places
from longctx.attention.layer import Attention
from longctx.attention.positions import Position, RoPE
from longctx.attention.positions.rope_scaling import RopeScaling
from longctx.mixer import MixerConfig
from longctx.variants import members

MODEL = 256
"""Width of the model that parameters are counted in; attention has 8 heads of width 32."""

LAYERS: dict[str, tuple[type, Callable[[Any], MixerConfig]]] = {
    "mixer": (MixerConfig, lambda mixer: mixer),
    "position": (Position, lambda position: Attention(position=position)),
    "scaling": (RopeScaling, lambda scaling: Attention(position=RoPE(scaling=scaling))),
    "pattern": (Pattern, lambda pattern: Attention(pattern=pattern)),
}
"""The families, and the layer in which a member of each is tried."""


def table() -> str:
    """Return the markdown table of all variants in the files of `longctx`."""
    columns = ("", "variant", "paper", "causal", "cached", "kernels", "parameters")
    lines = [columns, ("---",) * (len(columns) - 1) + ("---:",)]
    for family, (base, layer) in LAYERS.items():
        for name, kind in sorted(members(base).items()):
            if kind.__module__.startswith("longctx."):
                file = f"{kind.__module__.replace('.', '/')}.py"
                mixer = layer(_example(kind))
                found = _causal(mixer), _cached(mixer), _kernels(mixer)
                count = _parameters(mixer, family == "mixer")
                lines.append((family, f"[`{name}`]({file})", kind.paper, *found, count))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _example(kind: Any) -> Any:
    """Return the default instance, or one for tests where there is no default."""
    needs = [p for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
    return kind.small()[0] if needs else kind()


def _causal(mixer: MixerConfig) -> str:
    """Say whether no token sees a later one."""
    return {None: "no", 0: "yes"}.get(mixer.prefix, "prefix")


def _try(mixer: MixerConfig, length: int, explicit: bool, capacity: int | None = None) -> Any:
    """Return the shapes of (output, state) of a call; `capacity` is that of a state, if any."""

    def call():
        layer = mixer.build(MODEL, jnp.float32, nnx.Rngs(0))
        positions = jnp.arange(length)[None] if explicit else None
        axes = mixer.position_scheme.axes
        coordinates = jnp.zeros((1, length, axes), jnp.int32) if axes else None
        state = None if capacity is None else layer.init_state(1, capacity)
        x = jnp.zeros((1, length, MODEL))
        return layer(x, Places(positions, coordinates=coordinates), state)

    return jax.eval_shape(call)


def _cached(mixer: MixerConfig) -> str:
    """Say what a layer remembers, from the sizes of its state for few and for many tokens."""
    try:
        small, large = (
            sum(leaf.size for leaf in jax.tree.leaves(_try(mixer, 1, True, capacity)[1]))
            for capacity in (16, 4096)
        )
    except ValueError:  # sees ahead, so it can't continue a state
        return "no"
    if small < large:
        return "yes"
    window = mixer.pattern.window if isinstance(mixer, Attention) else None
    return "fixed size" if window is None else f"ring of {window}"


def _kernels(mixer: MixerConfig) -> str:
    """Say which implementations serve whole sequences, given positions, or single queries."""
    if not isinstance(mixer, Attention):
        return "its own"
    refusing = [name for name in IMPLEMENTATIONS if not _serves(name, mixer)]
    return f"all but {', '.join(refusing)}" if refusing else "all"


def _serves(name: str, mixer: Attention) -> bool:
    for length, explicit in ((16, False), (16, True), (1, True)):
        try:
            _try(replace(mixer, implementation=name), length, explicit)
            return True
        except NotImplementedError:
            continue
    return False


def _parameters(mixer: MixerConfig, whole: bool) -> str:
    """Say how many parameters a layer has, or has more than plain attention, and a model once."""
    count = _count(lambda: mixer.build(MODEL, jnp.float32, nnx.Rngs(0)))
    if not whole:
        count -= _count(lambda: Attention().build(MODEL, jnp.float32, nnx.Rngs(0)))
    parts = mixer.position_scheme.parts
    once = sum(_count(lambda p=part: p.in_embedding(MODEL, nnx.Rngs(0))) for part in parts)
    said = [f"{count:,}"] * bool(count or not once) + [f"{once:,} once"] * bool(once)
    return " + ".join(said)


def _count(build: Callable[[], Any]) -> int:
    params = nnx.state(nnx.eval_shape(build), nnx.Param)
    return sum(leaf.size for leaf in jax.tree.leaves(params))
