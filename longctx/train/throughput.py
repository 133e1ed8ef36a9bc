"""How fast a run is, measured against what the device could do at best."""

import time

import jax
import jax.numpy as jnp
from flax import nnx

from kernels.targets import target_of
from longctx.train.config import Train


def flops_per_token(config: Train, params: nnx.State) -> float:
    """Return the model's operations per trained token, forward and backward.

    6 for every multiplication of the forward pass (Kaplan et al. 2020, section 2.1): it has an
    addition beside it, and the backward pass is twice as much. Recomputation does not count.
    """
    vocab = len(config.data.vocabulary().names)
    return 6 * config.model.multiplications(params, vocab, config.window)


def peak_flops() -> tuple[float, str]:
    """Return the operations per second that all devices could do, and where that is from."""
    device = jax.devices()[0]
    target = target_of(device.device_kind)
    if target is not None:
        return target.peak_flops * jax.device_count(), f"{device.device_kind} data sheet"
    return _measured_peak(), "a float32 matrix product measured here"


def _measured_peak(size: int = 1024, repeats: int = 5) -> float:
    x = jnp.ones((size, size), jnp.float32)
    product = jax.jit(jnp.matmul)
    product(x, x).block_until_ready()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        product(x, x).block_until_ready()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
