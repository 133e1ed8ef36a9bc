"""What a model composes: chorales sampled from it, to hear and to see."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longctx.evaluator import Audio, Evaluator, Image, Trained, Value
from longctx.generate import generate
from longctx.sampling import Sampler
from music.chorale import Chorale
from music.render import midi_bytes, piano_roll, to_midi, to_wav


def sample_chorales(
    trained: Trained,
    count: int,
    *,
    length: int,
    sampler: Sampler,
    seed: int,
    primer: Chorale | None = None,
    progress: Callable[[int], None] = lambda tokens: None,
) -> list[Chorale]:
    """Return `count` chorales of at most `length` new tokens that begin with the primer, if any.

    Raises:
        ValueError: the model's vocabulary does not spell chorales, or not this primer.
    """
    vocabulary = trained.data.vocabulary()
    start = np.array([vocabulary.boundary], np.int32)
    if primer is not None:
        start = np.concatenate([start, vocabulary.encode(primer)])
    rows = generate(
        trained.graphdef,
        trained.params,
        [start] * count,
        length=length,
        boundary=vocabulary.boundary,
        sampler=sampler,
        rule=trained.rule(),
        seed=seed,
        progress=progress,
    )
    pieces = [vocabulary.decode(np.concatenate([start, row])) for row in rows]
    for piece in pieces:
        if not isinstance(piece, Chorale):
            raise ValueError(f"the model spells {type(piece).__name__}s; wanted Chorales")
    return pieces


@dataclass(frozen=True)
class ChoraleSamples(Evaluator):
    """Samples as sound and piano roll."""

    count: int = 2
    """Chorales per run."""
    length: int = 512
    """Largest number of tokens of each; a sixteenth note has four."""
    sampler: Sampler = Sampler()
    """How tokens are drawn."""
    seed: int = 0
    """The same at every step, so that samples can be compared."""

    def run(self, trained: Trained) -> Iterator[tuple[str, Value]]:
        """Yield `samples/N/audio` and `samples/N/piano_roll`."""
        chorales = sample_chorales(
            trained, self.count, length=self.length, sampler=self.sampler, seed=self.seed
        )
        for index, chorale in enumerate(chorales):
            if chorale.steps == 0:
                continue
            yield f"samples/{index}/audio", Audio(to_wav(midi_bytes(to_midi(chorale))))
            title = f"sample {index} at step {trained.step}"
            yield f"samples/{index}/piano_roll", Image(piano_roll(chorale, title))


def write_chorales(chorales: list[Chorale], folder: Path, title: str) -> Iterator[str]:
    """Write each chorale as MIDI, WAV and PNG; yield a line about each.

    Raises:
        OSError: the folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for index, chorale in enumerate(chorales):
        if chorale.steps == 0:
            yield f"{index}: the model ended this piece before its first note; nothing is written"
            continue
        stem = folder / f"chorale_{index}"
        midi = midi_bytes(to_midi(chorale))
        stem.with_suffix(".mid").write_bytes(midi)
        stem.with_suffix(".wav").write_bytes(to_wav(midi))
        stem.with_suffix(".png").write_bytes(piano_roll(chorale, f"{title}: {index}"))
        bars = chorale.steps / chorale.bar
        yield f"{index}: {bars:.1f} bars in {stem}.mid, .wav and .png"
