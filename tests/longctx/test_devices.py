"""Several devices give what one gives: the batch is divided, loss and gradients stay."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_property_kit import VARIANTS

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
sys.path.insert(0, "tests/longctx")
import test_property_kit as kit

def loss(graphdef, params, x):
    logits, _ = nnx.merge(graphdef, params)(x, kit.places(x))
    return (jax.nn.log_softmax(logits) ** 2).mean()

assert jax.device_count() == 8
x = kit.tokens(8)
for name in kit.VARIANTS if "all" in sys.argv else list(kit.VARIANTS)[::20]:
    graphdef, params = nnx.split(kit.build(name, None))
    step = jax.jit(jax.value_and_grad(partial(loss, graphdef)))
    want = None
    for count in (1, 2, 4, 8) if "all" in sys.argv else (1, 8):
        mesh = Mesh(np.array(jax.devices()[:count]), ("data",))
        whole, rows = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
        got = jax.tree.map(
            np.asarray, step(jax.device_put(params, whole), jax.device_put(x, rows))
        )
        want = got if want is None else want
        for ours, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            worst = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-6)
            assert worst <= 1e-4, (name, count, worst)
    print(name)
"""


def check(*arguments: str) -> int:
    """Return how many variants were the same on one device and on several."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT, env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return len(done.stdout.splitlines())


def test_a_few_variants_on_8_devices():
    assert check() >= 3


@pytest.mark.slow
def test_every_variant_on_1_2_4_and_8_devices():
    assert check("all") == len(VARIANTS)
