"""Find the best block sizes on the device at hand: python -m scripts.tune [--help]."""

from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

from kernels.attention import IMPLEMENTATIONS, attention
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
    kernel = f"pallas_{jax.default_backend()}"
    if kernel not in CANDIDATES:
        raise ValueError(
            f"there is nothing to tune on {jax.default_backend()}: kernels are interpreted there, "
            "and those times mean nothing. Run this on the TPU or GPU to tune for"
        )
    if kernel not in IMPLEMENTATIONS:
        raise ValueError(f"there is no {kernel} yet; known are {', '.join(IMPLEMENTATIONS)}")
    cases = list(product(dims, dtypes, lengths, (False, True), (False, True)))
    for done, (dim, dtype, length, term, backward) in enumerate(cases, start=1):
        name = entry_name(kernel, dim, dtype, length, term=term, backward=backward)
        print(f"[{done}/{len(cases)}] {name}", flush=True)
        inputs = [*jax.random.normal(jax.random.key(0), (3, 1, heads, length, dim), dtype)]
        if term:
            inputs.append(RelativeTerm(jnp.ones((heads, length, dim)) / dim, "clip"))
        call, times = partial(gradients if backward else forward, kernel), {}
        for blocks, result in time_candidates(kernel, call, inputs, repeats, backward=backward):
            if not isinstance(result, Exception):
                times[blocks] = result
                result = f"{1e3 * result:.3f} ms"
            print(f"  {blocks.rows} x {blocks.columns}: {result}", flush=True)
        if times:
            save(table, jax.devices()[0].device_kind, {name: min(times, key=times.__getitem__)})


def forward(kernel, q, k, v, term=None):
    """Return causal attention."""
    return attention(q, k, v, pattern=Causal(), term=term, implementation=kernel)


def gradients(kernel, *inputs):
    """Return its gradients, which take a forward pass that is the same for every candidate."""
    out, pull = jax.vjp(partial(forward, kernel), *inputs)
    return pull(out)


def main(arguments: list[str]) -> None:
    """Tune as the command line says."""
    tyro.cli(tune, args=arguments, prog="python -m scripts.tune")


if __name__ == "__main__":
    run(main)
