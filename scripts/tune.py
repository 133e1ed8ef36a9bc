"""Find the best block sizes on the device at hand: python -m scripts.tune [--help]."""

from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

from kernels.attention import attention
from kernels.platform import device_kind, platform
from kernels.tuning import CANDIDATES, TABLE, entry_name, save, time_candidates
from longctx.attention.patterns import Causal
from longctx.attention.positions.relative import RelativeTerm
from scripts.program import run


def tune(
    dims: tuple[int, ...] = (64, 128),
    lengths: tuple[int, ...] = (2048, 8192),
    dtypes: tuple[str, ...] = ("bfloat16", "float32"),
    heads: int = 8,
    repeats: int = 10,
    table: Path = TABLE,
) -> None:
    """Time every candidate of the kernel for this device, and keep the fastest in the table.

    Args:
        dims: Widths of a head.
        lengths: Tokens; the table holds for lengths up to the next power of two.
        dtypes: Of queries, keys and values.
        heads: How many there are; one row of the batch.
        repeats: Calls of each candidate; the fastest counts.
        table: The file that the results are added to.
    """
    kernel = f"pallas_{platform()}"
    if kernel not in CANDIDATES:
        raise ValueError(
            f"there is nothing to tune on {platform()}: kernels are interpreted there, "
            "and those times mean nothing. Run this on the TPU or GPU to tune for"
        )
    cases = list(product(dims, dtypes, lengths, (False, True), CANDIDATES[kernel]))
    for done, (dim, dtype, length, term, way) in enumerate(cases, start=1):
        name = entry_name(kernel, dim, dtype, length, term=term, way=way)
        print(f"[{done}/{len(cases)}] {name}", flush=True)
        inputs = [*jax.random.normal(jax.random.key(0), (3, 1, heads, length, dim), dtype)]
        if term:
            inputs.append(RelativeTerm(jnp.ones((heads, length, dim)) / dim, "clip"))
        call, times = partial(forward if way == "forward" else gradients, kernel), {}
        for blocks, result in time_candidates(kernel, call, inputs, repeats, way=way):
            if not isinstance(result, Exception):
                times[blocks] = result
                result = f"{1e3 * result:.3f} ms"
            sizes = f"{blocks.rows} x {blocks.columns}" if blocks else "rule of thumb"
            print(f"  {sizes}: {result}", flush=True)
        if times:
            save(table, device_kind(), {name: min(times, key=times.__getitem__)})


def forward(kernel, q, k, v, term=None):
    """Return causal attention."""
    return attention(q, k, v, pattern=Causal(), term=term, implementation=kernel)


def gradients(kernel, *inputs):
    """Return it and its gradients."""
    out, pull = jax.vjp(partial(forward, kernel), *inputs)
    return out, pull(out)


def main(arguments: list[str]) -> None:
    """Tune as the command line says."""
    tyro.cli(tune, args=arguments, prog="python -m scripts.tune")


if __name__ == "__main__":
    run(main)
