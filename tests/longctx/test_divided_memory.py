"""A memory divided over devices finds, keeps and teaches what a whole one does."""

import os
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest
from flax import nnx

from longctx.mixers import Memorizing

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from dataclasses import replace
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from jax.sharding import AxisType
from kernels.attention import Places
from longctx.attention.positions import NoPosition
from longctx.mixers import Memorizing

whole = Memorizing(
    heads=4, kv_heads=2, position=NoPosition(), window=4, memory=20, top_k=3, segment=6
)
every = "every" in sys.argv
cuts = (0, 3, 17, 18, 20, 60) if every else (0, 17, 29)
starts, length = np.array([[25], [41]]) if every else np.array([[5], [20]]), cuts[-1]
x = jax.random.normal(jax.random.key(0), (2, length, 16))
place = jnp.arange(length)
segments = (place >= starts).astype(int)
positions = jnp.where(segments == 1, place - starts, place)

def build(config):
    graphdef, params = nnx.split(config.build(16, jnp.float32, nnx.Rngs(0)))
    key = jax.random.key(1)
    return graphdef, jax.tree.map(lambda p: p + 0.3 * jax.random.normal(key, p.shape), params)

def run(config):
    graphdef, params = build(config)

    def outputs(params, x):
        layer = nnx.merge(graphdef, params)
        state, parts = layer.training_state(2), []
        for start, stop in zip(cuts, cuts[1:]):
            at = Places(positions[:, start:stop], segments[:, start:stop])
            part, state = layer(x[:, start:stop], at, state)
            parts.append(part)
        y = jnp.concatenate(parts, axis=1)
        return (y * jnp.cos(jnp.arange(16))).sum(), (y, state)

    return jax.jit(jax.value_and_grad(outputs, (0, 1), has_aux=True))(params, x)

for storage in ("float32", "int8") if every else ("float32",):
    want = run(replace(whole, storage=storage))
    for devices in (2, 6) if every else (2,):
        others = 8 // devices
        mesh = jax.make_mesh((others, devices), ("data", "slots"), (AxisType.Auto,) * 2)
        with jax.set_mesh(mesh):
            got = run(replace(whole, storage=storage, divided="slots"))
            store = got[0][1][1].store
            spec = store.entries.k.sharding.spec
            assert spec[2] == "slots", spec
            got = jax.tree.map(np.asarray, got)
        pairs = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
        worst = max(np.abs(a.astype(float) - np.asarray(b, float)).max() for a, b in pairs)
        print(storage, devices, worst)
        assert worst <= 1e-4, worst
"""


def check(*arguments: str) -> int:
    """Return how many divided memories were as a whole one."""
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        cwd=ROOT, env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return len(done.stdout.splitlines())


def test_its_outputs_gradients_and_state_are_those_of_a_whole_memory():
    assert check() == 1


@pytest.mark.slow
def test_so_they_are_in_every_chunk_storage_and_number_of_devices():
    assert check("every") == 4


def test_without_its_axis_it_is_refused():
    layer = Memorizing(heads=2, divided="slots").build(16, jnp.float32, nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"axis 'slots', but the current mesh has no axes"):
        layer.init_state(2, 10)
