"""Training on several devices is training on one, also of what layers carry and measure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from longctx.attention.patterns import Recurrent
from longctx.attention.positions import RelativeEmbedding
from longctx.data.batch import Batch
from longctx.mixers import Memorizing, Routing, TransformerXL
from longctx.train.state import TrainState
from longctx.train.step import make_step
from longctx.transformer import Transformer

assert jax.device_count() == 8
table = RelativeEmbedding(9)
mixers = (
    TransformerXL(heads=2, position=table, pattern=Recurrent(6, 8)),
    Memorizing(heads=2, position=table, window=4, memory=16, top_k=3),
    Routing(heads=2, local_heads=1, clusters=3, window=5, position=table, decay=0.5),
)
config = Transformer(layers=3, model=8, hidden=8, mixer=mixers, dropout=0.0)
model = config.build(11, jnp.float32, 0)
graphdef, params = nnx.split(model)
optimizer = optax.sgd(0.1)
rng = np.random.default_rng(0)
stream = rng.integers(0, 11, (8, 37)).astype(np.int32)
document = (np.arange(36) >= rng.integers(5, 30, (8, 1))).astype(np.int32)

def trained(devices):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    whole, rows = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
    copy = jax.tree.map(jnp.copy, params)
    state = TrainState.create(copy, optimizer, model.training_state(8))
    carry = jax.device_put(state.carry, rows)
    state = replace(jax.device_put(replace(state, carry=None), whole), carry=carry)
    step, losses = make_step(graphdef, optimizer, 1, seed=0), []
    for start in (0, 12, 24):
        part = slice(start, start + 12)
        batch = Batch(stream[:, part], stream[:, 1:][:, part], np.ones((8, 12), np.float32),
                      document[:, part])
        state, metrics = step(state, jax.device_put(batch, rows))
        losses.append(metrics)
    return jax.tree.map(np.asarray, (losses, state))

for ours, theirs in zip(jax.tree.leaves(trained(8)), jax.tree.leaves(trained(1)), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
"""


@pytest.mark.slow
def test_eight_devices_train_as_one():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
