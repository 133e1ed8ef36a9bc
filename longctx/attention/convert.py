"""From multi-head to grouped-query attention, after training (Ainslie et al. 2023)."""

from dataclasses import replace

from einops import reduce
from flax import nnx
from jax import Array
from jaxtyping import Float

from longctx.attention.layer import Attention
from longctx.mixer import MixerConfig
from longctx.transformer import Transformer


def mha_to_gqa(
    config: Transformer, params: nnx.State, kv_heads: int
) -> tuple[Transformer, nnx.State]:
    """Return the config with `kv_heads` key-value heads in each layer, and parameters for it.

    A new key or value head is the mean of those that its query heads had. All else stays, so the
    result is close to the given model, and needs some more training to be as good.

    Raises:
        ValueError: a layer isn't attention with as many key-value heads as heads, or `kv_heads`
            doesn't divide them.
    """
    mixers = tuple(_grouped(mixer, kv_heads) for mixer in config.mixers)
    flat = dict(nnx.to_flat_state(params))
    for index, mixer in enumerate(mixers):
        for name in ("k", "v"):
            path = ("blocks", index, "mixer", name, "kernel")
            pooled = _pooled(flat[path][...], mixer.heads, kv_heads)
            flat[path] = flat[path].replace(pooled)
    mixer = mixers if isinstance(config.mixer, tuple) else mixers[0]
    return replace(config, mixer=mixer), nnx.from_flat_state(flat)


def _grouped(mixer: MixerConfig, kv_heads: int) -> Attention:
    if not isinstance(mixer, Attention):
        raise ValueError(f"{type(mixer).__name__} has no heads to pool; only Attention has")
    if mixer.kv_heads not in (None, mixer.heads):
        raise ValueError(
            f"the layer has {mixer.kv_heads} key-value heads for {mixer.heads} heads: only "
            "multi-head attention, with as many of both, can be pooled"
        )
    if kv_heads < 1 or mixer.heads % kv_heads:
        raise ValueError(f"kv_heads {kv_heads} must divide the {mixer.heads} heads")
    return replace(mixer, kv_heads=kv_heads)


def _pooled(
    kernel: Float[Array, "model wide"], heads: int, kv_heads: int
) -> Float[Array, "model narrow"]:
    """Return the mean of each group of consecutive heads."""
    return reduce(
        kernel, "model (kv group dim) -> model (kv dim)", "mean", kv=kv_heads,
        group=heads // kv_heads,
    )  # fmt: skip
