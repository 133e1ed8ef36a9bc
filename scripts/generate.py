"""Compose: python -m scripts.generate RUN_DIR --num 4 --out DIR [--primer file.mid] [flags]."""

from pathlib import Path
from typing import Annotated

import tyro

from eval.samples import sample_chorales, write_chorales
from longctx.flags import call_with_flags
from longctx.sampling import Sampler
from longctx.train.load import Which, load_trained
from music.midi.primer import read_chorale
from scripts.program import run


def compose(
    run_dir: tyro.conf.Positional[Path],
    out: Path,
    num: int = 4,
    length: int = 1024,
    primer: Path | None = None,
    seed: int = 0,
    checkpoint: Which = "best",
    *,
    sampler: Annotated[Sampler, tyro.conf.arg(name="")],
) -> None:
    """Sample pieces from a trained model; equal seeds give equal files.

    Args:
        run_dir: Folder of a training run.
        out: Folder for the MIDI, WAV and PNG files; made if absent.
        num: How many pieces.
        length: The largest number of new tokens; a sixteenth note of four voices has four.
        primer: A MIDI file that every piece begins with.
        seed: Of the draws.
        checkpoint: Which one to take.
    """
    if num < 1:
        raise ValueError(f"--num must be at least 1, not {num}")
    trained = load_trained(run_dir, checkpoint)
    start = None if primer is None else read_chorale(primer)
    print(f"step {trained.step} of {run_dir}; up to {length} tokens for each of {num} pieces")
    chorales = sample_chorales(
        trained,
        num,
        length=length,
        sampler=sampler,
        seed=seed,
        primer=start,
        progress=lambda tokens: print(f"\r{tokens} tokens a piece", end="", flush=True),
    )
    print()
    for line in write_chorales(chorales, out, f"{run_dir.name}, seed {seed}"):
        print(line)


def main(arguments: list[str]) -> None:
    """Sample as the command line says."""
    call_with_flags(compose, arguments, "python -m scripts.generate")


if __name__ == "__main__":
    run(main)
