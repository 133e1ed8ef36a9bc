"""Go on with another memory: python -m scripts.resize_memory RUN --memory 65536 --out NEW_RUN."""

from pathlib import Path

import tyro

from longctx.train.resize_memory import resize_memory
from scripts.program import run


def resize(run_dir: tyro.conf.Positional[Path], memory: int, out: Path) -> None:
    """Write a run with a memory of another size that goes on from another run's last checkpoint.

    Args:
        run_dir: Folder of a training run whose network has Memorizing layers.
        memory: How many keys can be retrieved from then on.
        out: Folder of the new run; train with its own config to go on.
    """
    step = resize_memory(run_dir, memory, out)
    print(f"{out} goes on after step {step} with a memory of {memory:,} keys")


def main(arguments: list[str]) -> None:
    """Do what the command line says."""
    tyro.cli(resize, args=arguments, prog="python -m scripts.resize_memory")


if __name__ == "__main__":
    run(main)
