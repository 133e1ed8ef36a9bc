"""Left to itself, a model uses the kernels of the device that it is built for."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from kernels.platform import building_for
from kernels.targets import target_of
from longctx.attention.layer import Attention
from longctx.attention.patterns import Local
from longctx.attention.positions import FIRE, RelativeEmbedding
from longctx.transformer import Transformer

KINDS = {"tpu": "TPU v6 lite", "gpu": "NVIDIA H200", "cpu": "cpu"}
KERNELS = {
    "tpu": ("attention_forward", "attention_backward"),
    "gpu": ("attention_forward", "attention_backward_q", "attention_backward_kv"),
}


def program(platform: str, mixer: Attention, tokens: int = 256) -> str:
    """Return the text of a model's gradient, lowered for a platform."""
    model = Transformer(model=64, layers=1, mixer=mixer)
    graphdef, params = nnx.split(nnx.eval_shape(lambda: model.build(50, jnp.bfloat16, 0)))

    def loss(params, x):
        logits, _ = nnx.merge(graphdef, params)(x)
        return logits.astype(jnp.float32).sum()

    x = jax.ShapeDtypeStruct((1, tokens), jnp.int32)
    name = "cuda" if platform == "gpu" else platform
    target = target_of(KINDS[platform])
    with building_for(platform, KINDS[platform]), target.tracing() if target else nullcontext():
        lowered = jax.jit(jax.grad(loss)).trace(params, x).lower(lowering_platforms=(name,))
    return lowered.as_text()


@pytest.mark.parametrize("platform", KERNELS)
@pytest.mark.parametrize(
    "mixer",
    [Attention(heads=2), Attention(heads=2, position=RelativeEmbedding(max_distance=64))],
    ids=["plain", "relative"],
)
def test_a_training_step_calls_the_kernels_of_its_device(platform, mixer):
    text = program(platform, mixer)
    for kernel in KERNELS[platform]:
        assert kernel in text, f"no {kernel}"


def test_no_other_device_sees_them():
    assert "attention_forward" not in program("cpu", Attention(heads=2))


def test_what_a_kernel_does_not_serve_goes_to_the_next():
    text = program("tpu", Attention(heads=2, position=FIRE(), pattern=Local(16)))
    assert "attention_forward" not in text
