"""CPU time, wall time and peak memory of one case, in a process of its own.

    python -m eval.speed                                 list the cases
    python -m eval.speed longctx/train/1024x4            measure one and print it
    python -m eval.speed longctx/train/1024x4 --json     the same as one line of JSON

CPU seconds (user + system, all threads) can be compared better than wall seconds where others use
the machine, but not well: threads that wait for one another spin, and then count. So the load of
the machine (cores that are busy) in the second before the case stands beside them. Memory is the
peak of the whole process, imports and compiler included, so each case needs a fresh one: `run_case`
starts it.

A case is a name and a function without arguments that returns a dict; adding one is adding a line
to `CASES`. Imports are made inside a case, so that one framework is not in another's memory.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from eval.speed_cases import OURS
from eval.usage import Result, busy_cores, measure

FRAMEWORKS = ("jax", "jaxlib", "flax", "optax", "torch")
ROOT = Path(__file__).parents[1]


@runtime_checkable
class Peer(Protocol):
    """A model of another framework that trains on random tokens."""

    def train_step(self) -> float:
        """Take one step of the optimizer on a new batch and return the loss."""
        ...

    def generate(self, batch: int, length: int) -> object:
        """Return sampled tokens [batch, length] that begin with one random token each."""
        ...


def build_peer(name: str, **size: Any) -> Peer:
    from eval.peers import PeerConfig
    from eval.peers.torch_gpt import TorchGPT
    from eval.peers.torch_music_transformer import TorchMusicTransformer

    peers = {"torch_gpt": TorchGPT, "torch_music_transformer": TorchMusicTransformer}
    # All cores, as JAX takes them.
    return peers[name](PeerConfig(threads=os.cpu_count() or 1, **size))


def peer_training(name: str, length: int, batch: int, **size: Any) -> Result:
    """Measure training steps of a PyTorch peer."""
    peer = build_peer(name, length=length, batch=batch, **size)
    return {"tokens": length * batch} | measure(peer.train_step)


def peer_generation(name: str, batch: int, length: int = 512, steps: int = 3) -> Result:
    """Measure the sampling of whole sequences by a PyTorch peer, after one of a few tokens."""
    peer = build_peer(name, length=length, batch=batch)
    peer.generate(batch, 8)
    sample = partial(peer.generate, batch, length)
    return {"tokens": length * batch} | measure(sample, steps, warmup=0)


GPT, MUSIC = "torch_gpt", "torch_music_transformer"
CASES: dict[str, Callable[[], Result]] = {
    f"{GPT}/train/1024x4": partial(peer_training, GPT, 1024, 4),
    f"{GPT}/train/4096x1": partial(peer_training, GPT, 4096, 1),
    f"{GPT}/train-bfloat16/1024x4": partial(peer_training, GPT, 1024, 4, bfloat16=True),
    f"{GPT}/train-bfloat16/4096x1": partial(peer_training, GPT, 4096, 1, bfloat16=True),
    f"{GPT}/generate/512x1": partial(peer_generation, GPT, 1),
    f"{GPT}/generate/512x8": partial(peer_generation, GPT, 8),
    f"{MUSIC}/train/1024x4": partial(peer_training, MUSIC, 1024, 4),
    f"{MUSIC}/train/4096x1": partial(peer_training, MUSIC, 4096, 1),
    f"{MUSIC}/train-bfloat16/1024x4": partial(peer_training, MUSIC, 1024, 4, bfloat16=True),
    f"{MUSIC}/train-bfloat16/4096x1": partial(peer_training, MUSIC, 4096, 1, bfloat16=True),
    f"{MUSIC}/generate/512x1": partial(peer_generation, MUSIC, 1),
    f"{MUSIC}/generate/512x8": partial(peer_generation, MUSIC, 8, steps=1),
    **OURS,
}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the frameworks that this process has loaded."""
    loaded = {name: importlib.metadata.version(name) for name in FRAMEWORKS if name in sys.modules}
    return {"python": platform.python_version()} | loaded


def run_case(name: str, python: str = sys.executable) -> Result:
    """Measure one case in a fresh process of an interpreter that has what the case needs."""
    command = [python, "-m", "eval.speed", name, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def run_cases(names: list[str], repeats: int, torch_python: str) -> tuple[list[Result], list[str]]:
    """Measure cases in turns, print how it goes, and return the results and the failed names.

    In turns, because the load of a machine changes slowly: it shall not hit all repeats of one.
    """
    results, failures = [], []
    for number, name in enumerate(runs := repeats * names, 1):
        print(f"{number}/{len(runs)} {name} ...", end=" ", flush=True)
        try:
            result = run_case(name, torch_python if name.startswith("torch") else sys.executable)
        except RuntimeError as error:
            failures.append(name)
            print(f"failed\n{error}", flush=True)
        else:
            results.append(result)
            per_second = result["tokens"] / result["cpu_seconds"]
            print(f"{per_second:.0f} tokens per CPU s", flush=True)
    return results, failures


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.speed", description="Measure one case.")
    parser.add_argument("case", nargs="?", help="a name; without one, the names are listed")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    if options.case is None:
        print("\n".join(CASES))
        return
    if options.case not in CASES:
        parser.error(f"{options.case} is no case; there are {', '.join(CASES)}")
    load = busy_cores()
    result = {"case": options.case, "load_before": load} | CASES[options.case]()
    result["versions"] = versions()
    if options.json:
        print(json.dumps(result))
        return
    compiled = result.get("compile_seconds")
    print(
        f"{options.case}: {result['cpu_seconds']:.3g} CPU s, {result['wall_seconds']:.3g} s, "
        f"{result['tokens'] / result['cpu_seconds']:.4g} tokens per CPU s, "
        f"peak {result['peak_bytes'] / 1e9:.3g} GB, load before {load:.2g}"
        + ("" if compiled is None else f", compiled in {compiled:.3g} s")
    )


if __name__ == "__main__":
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # every compilation is cold
    main()
