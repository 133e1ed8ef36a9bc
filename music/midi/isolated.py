"""Many MIDI files, each read in a worker process: what ends or stalls a worker costs one file."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue

from symusic.core import ScoreTick

from music.midi.limits import Limits
from music.midi.read import DEFAULT_LIMITS, Read
from music.midi.worker import LENGTHS, READY

START_SECONDS = 60
AHEAD = 4
"""So many files per worker are read before they are asked for."""


def read_many(
    paths: Iterable[str | Path],
    workers: int = 1,
    limits: Limits = DEFAULT_LIMITS,
    parser: str = "music.midi.read:read_midi",
) -> Iterator[tuple[Path, Read]]:
    """Yield each path and what became of its file, in the order given.

    Files are read in worker processes. A native crash, or more time or memory than the limits
    allow, costs the file that caused it: it is skipped with that reason and the worker replaced.

    Args:
        paths: Of the files; taken as needed, so they may be very many.
        workers: Number of processes.
        limits: On each file.
        parser: The function that reads, as module:function.

    Raises:
        ValueError: `workers` is less than 1.
        RuntimeError: a worker does not start.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}; wanted at least one process")
    return _read_many(paths, [_Worker(parser) for _ in range(workers)], limits)


def _read_many(
    paths: Iterable[str | Path], team: list["_Worker"], limits: Limits
) -> Iterator[tuple[Path, Read]]:
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in team:
        idle.put(worker)

    def read(path: Path) -> Read:
        worker = idle.get()
        try:
            return worker.read(path, limits)
        finally:
            idle.put(worker)

    pool = ThreadPoolExecutor(len(team))
    waiting: deque[tuple[Path, Future[Read]]] = deque()
    try:
        for path in map(Path, paths):
            waiting.append((path, pool.submit(read, path)))
            if len(waiting) > AHEAD * len(team):
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        for worker in team:
            worker.stop()


class _Worker:
    """A process that reads one file at a time, and starts again after it was ended."""

    def __init__(self, parser: str):
        self.parser = parser
        self.process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path, limits: Limits) -> Read:
        """Return what became of a file."""
        process = self.process or self._start()
        assert process.stdin is not None
        request = json.dumps([os.fspath(path), asdict(limits)]) + "\n"
        try:
            process.stdin.write(request.encode())
            process.stdin.flush()
            end = time.monotonic() + limits.seconds
            facts_length, score_length = LENGTHS.unpack(self._take(LENGTHS.size, end))
            status, reasons = json.loads(self._take(facts_length, end))
            packed = self._take(score_length, end)
        except TimeoutError:
            self.stop()
            return Read("skipped", (f"takes more than {limits.seconds:g} seconds to read",))
        except (EOFError, BrokenPipeError):
            return Read("skipped", (f"ends the process that reads it ({self._cause_of_death()})",))
        score = None
        if packed:
            score = ScoreTick.__new__(ScoreTick)
            score.__setstate__(packed)
        return Read(status, tuple(reasons), score)

    def stop(self) -> int:
        """End the process, if there is one; return its exit status."""
        process, self.process = self.process, None
        if process is None:
            return 0
        process.kill()
        with process:  # closes the pipes and waits
            pass
        return process.returncode

    def _cause_of_death(self) -> str:
        process = self.process
        assert process is not None
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            status = 0
        self.stop()
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "music.midi.worker", self.parser],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=-1,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # an interrupt reaches us, and ends it with us
        )
        try:
            self._take(len(READY), time.monotonic() + START_SECONDS)
        except (EOFError, TimeoutError) as error:
            self.stop()
            raise RuntimeError(
                f"a process that reads MIDI files with {self.parser} does not start; see its "
                "message above"
            ) from error
        return self.process

    def _take(self, count: int, end: float) -> bytes:
        """Return so many bytes of the answer, if they come before the end."""
        process = self.process
        assert process is not None
        assert process.stdout is not None
        pipe, taken = process.stdout.fileno(), bytearray()
        while len(taken) < count:
            ready, _, _ = select.select([pipe], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError
            block = os.read(pipe, min(count - len(taken), 1 << 20))
            if not block:
                raise EOFError
            taken += block
        return bytes(taken)
