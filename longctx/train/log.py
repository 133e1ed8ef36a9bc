"""Where a run's numbers go: TensorBoard, a file of JSON lines, and the terminal."""

import contextlib
import io
import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image as Pillow
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboardX import SummaryWriter

from longctx.evaluator import Audio, Image, Value
from longctx.train.run_folder import RunFolder, replace_text


class Log:
    """Writes named values at steps.

    A run that starts again at an earlier step takes back what was logged after it, so that files
    read as if it had never stopped.
    """

    def __init__(self, folder: RunFolder, step: int, steps: int, console: Console | None = None):
        _truncate(folder.metrics, step)
        self._lines = folder.metrics.open("a")
        self._board = SummaryWriter(
            str(folder.tensorboard), purge_step=step + 1, max_queue=1000, flush_secs=1
        )
        self.console = console or Console()
        self._progress = Progress(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._task = self._progress.add_task(
            "train", total=steps, completed=step, status="compiling"
        )
        self._progress.start()

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        """Log values at a step; plain numbers also go to the JSON lines, in full precision.

        Raises:
            OSError: the log can't be written; the text says where and why.
        """
        try:
            self._write(step, values)
        except OSError as error:
            raise OSError(
                f"the log {self._lines.name} can't be written at step {step} ({error.strerror}). "
                "Make room (or give rights) and start again: it continues from the last checkpoint."
            ) from error

    def _write(self, step: int, values: Mapping[str, Value]) -> None:
        numbers = {}
        for name, value in values.items():
            if isinstance(value, Audio):
                sound, rate = soundfile.read(io.BytesIO(value.wav), always_2d=True)
                self._board.add_audio(name, sound.mean(axis=1), step, sample_rate=rate)
            elif isinstance(value, Image):
                pixels = np.asarray(Pillow.open(io.BytesIO(value.png)).convert("RGB"))
                self._board.add_image(name, pixels, step, dataformats="HWC")
            else:
                numbers[name] = float(value)
                self._board.add_scalar(name, float(value), step)
        self._board.flush()
        if numbers:
            self._lines.write(json.dumps({"step": step, "time": time.time(), **numbers}) + "\n")
            self._lines.flush()

    def advance(self, step: int, loss: float, tokens_per_second: float) -> None:
        """Move the progress bar."""
        status = f"loss {loss:.3f}  {tokens_per_second:,.0f} tokens/s"
        self._progress.update(self._task, completed=step, status=status)

    def say(self, text: str) -> None:
        """Print a line above the progress bar."""
        self._progress.console.print(text, highlight=False)

    def close(self) -> None:
        """Flush everything; on a full disk nothing is lost, for each line is flushed already."""
        self._progress.stop()
        for file in (self._board, self._lines):
            with contextlib.suppress(OSError):
                file.close()


def _truncate(path: Path, step: int) -> None:
    """Drop the lines of steps after `step`, and a last line that a kill cut short."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] > step:
                continue
        except (json.JSONDecodeError, KeyError):
            continue
        kept.append(line)
    replace_text(path, "".join(line + "\n" for line in kept))
