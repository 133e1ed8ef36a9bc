"""The process that reads files for `music.midi.isolated`: python -m music.midi.worker PARSER.

It answers each line of its input, a JSON list of a path and the limits, with two lengths of four
bytes, a JSON list of status and reasons, and the score as symusic packs it.
"""

import importlib
import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from music.midi.limits import Limits
from music.midi.read import Read

LENGTHS = struct.Struct(">II")
READY = b"ready\n"

Parser = Callable[[str, Limits], Read]


def main(parser: str) -> None:
    """Answer until the input ends; `parser` names a function as module:function."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    module, _, name = parser.partition(":")
    parse: Parser = getattr(importlib.import_module(module), name)
    answers.write(READY)
    answers.flush()
    free = _address_space()
    for line in sys.stdin.buffer:
        path, limits = json.loads(line)
        read, packed = _answer(parse, path, Limits(**limits), free)
        facts = json.dumps([read.status, read.reasons]).encode()
        answers.write(LENGTHS.pack(len(facts), len(packed)) + facts + packed)
        answers.flush()


def _answer(parse: Parser, path: str, limits: Limits, used: int) -> tuple[Read, bytes]:
    """Return what became of a file, and its score packed; no error of the parser gets out."""
    resource.setrlimit(resource.RLIMIT_AS, (used + limits.memory, resource.RLIM_INFINITY))
    try:
        read = parse(path, limits)
        return read, b"" if read.score is None else read.score.__getstate__()
    except MemoryError:
        reason = f"takes more than {limits.memory:,} bytes of memory to read"
    except Exception as error:
        reason = f"cannot be read: {type(error).__name__}: {error}"
    return Read("skipped", (reason,)), b""


def _address_space() -> int:
    """Return the bytes of address space in use, most of it libraries; 0 where it is not told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return 0
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main(sys.argv[1])
