"""CPU time, wall time and peak memory of one case, in a process of its own.

    python -m eval.speed                                 list the cases
    python -m eval.speed torch_gpt/train/1024x4          measure one and print it
    python -m eval.speed torch_gpt/train/1024x4 --json   the same as one line of JSON

CPU seconds (user + system, all threads) can be compared better than wall seconds where others use
the machine, but not well: threads that wait for one another spin, and then count. So the load of
the machine before the case stands beside them. Memory is the peak of the whole process, imports
included, so each case needs a fresh one: `run_case` starts it.

A case is a name and a function without arguments that returns a dict; adding one is adding a line
to `CASES`. Imports are made inside a case, so that one framework is not in another's memory.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Protocol, runtime_checkable

Result = dict[str, Any]
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


def cpu_seconds() -> float:
    """Return the user and system time that all threads of this process have used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_bytes() -> int:
    """Return the most memory that this process has held at once."""
    status = Path("/proc/self/status")
    if status.exists():
        # On Linux ru_maxrss begins with the peak of the parent; this line does not.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(step: Callable[[], object], steps: int = 5, warmup: int = 2) -> Result:
    """Run `step`, which returns when its work is done, and report the median after a warm-up."""
    if steps < 1:
        raise ValueError(f"steps={steps}, but at least one has to be measured")
    for _ in range(warmup):
        step()
    cpu, wall = [], []
    for _ in range(steps):
        cpu_start, wall_start = cpu_seconds(), time.perf_counter()
        step()
        wall.append(time.perf_counter() - wall_start)
        cpu.append(cpu_seconds() - cpu_start)
    return {
        "cpu_seconds": median(cpu),
        "wall_seconds": median(wall),
        "peak_bytes": peak_bytes(),
        "all_cpu_seconds": cpu,
        "all_wall_seconds": wall,
        "warmup": warmup,
    }


def build_peer(name: str, **size: Any) -> Peer:
    from eval.peers import PeerConfig
    from eval.peers.torch_gpt import TorchGPT
    from eval.peers.torch_music_transformer import TorchMusicTransformer

    peers = {"torch_gpt": TorchGPT, "torch_music_transformer": TorchMusicTransformer}
    return peers[name](PeerConfig(**size))


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
    f"{MUSIC}/generate/512x1": partial(peer_generation, MUSIC, 1),
    f"{MUSIC}/generate/512x8": partial(peer_generation, MUSIC, 8, steps=1),
}


def run_case(name: str, python: str = sys.executable) -> Result:
    """Measure one case in a fresh process of an interpreter that has what the case needs."""
    command = [python, "-m", "eval.speed", name, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


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
    load = os.getloadavg()[0]
    result = {"case": options.case, "load_before": load} | CASES[options.case]()
    if options.json:
        print(json.dumps(result))
        return
    print(
        f"{options.case}: {result['cpu_seconds']:.3g} CPU s, {result['wall_seconds']:.3g} s, "
        f"{result['tokens'] / result['cpu_seconds']:.4g} tokens per CPU s, "
        f"peak {result['peak_bytes'] / 1e9:.3g} GB, load before {load:.2g}"
    )


if __name__ == "__main__":
    main()
