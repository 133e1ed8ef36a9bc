"""The folder of a run: its config, how it came about, its tokenizer, and where the rest lies."""

import importlib.metadata
import json
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path

import jax

from longctx.data.base import DataConfig
from longctx.data.vocabulary import vocabulary_hash
from longctx.serialise import differences, from_json, to_json
from longctx.train.config import Train

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "longctx-music")


class RunFolder:
    """Names the files of a run.

    config.json, tokenizer.json, provenance.json (command, versions, commit, device),
    metrics.jsonl, checkpoints/ and tensorboard/.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self.checkpoints = self.path.absolute() / "checkpoints"
        self.tensorboard = self.path / "tensorboard"
        self.metrics = self.path / "metrics.jsonl"
        self._config = self.path / "config.json"
        self._tokenizer = self.path / "tokenizer.json"
        self._provenance = self.path / "provenance.json"

    def create(self, config: Train) -> None:
        """Make the folder for a run of `config`, or check that it holds one already.

        Raises:
            ValueError: it holds a run of another config or tokenizer, both of which are shown.
            OSError: the folder can't be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise OSError(
                f"the run folder {self.path} can't be written ({error.strerror}); "
                "choose another with --run-dir"
            ) from None
        if self._config.exists():
            changed = differences(config, self.config())
            if changed:
                raise ValueError(
                    f"{self.path} holds a run of another config. This one has:\n  "
                    + "\n  ".join(changed)
                    + "\nContinue that run with its own flags, or choose another --run-dir."
                    + _conversion(changed, self.path)
                )
            self.check_tokenizer(config.data)
        else:
            replace_text(self._tokenizer, json.dumps(_tokenizer(config.data), indent=2) + "\n")
            replace_text(self._config, to_json(config))
        with self._provenance.open("a") as file:
            file.write(json.dumps(_provenance(config.data)) + "\n")

    def exists(self) -> bool:
        """Return whether a run lies here."""
        return self._config.exists()

    def config(self) -> Train:
        """Return the config of the run that lies here.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it is damaged or of another version.
        """
        try:
            config = from_json(self._config.read_text())
        except OSError:
            raise FileNotFoundError(
                f"{self.path} is no run folder: it holds no {self._config.name}. "
                "Give the --run-dir of a training run."
            ) from None
        except ValueError as error:
            raise ValueError(f"{self._config}: {error}") from None
        if not isinstance(config, Train):
            raise ValueError(f"{self._config} holds a {type(config).__name__}, not a Train config")
        return config

    def check_tokenizer(self, data: DataConfig) -> None:
        """Raise ValueError, showing both, if the run was trained with another tokenizer."""
        try:
            stored = json.loads(self._tokenizer.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ValueError(f"{self._tokenizer} can't be read: {error}") from None
        ours = _tokenizer(data)
        if stored.get("hash") != ours["hash"]:
            raise ValueError(
                f"{self.path} was trained with another tokenizer: "
                f"{_brief(stored)}; this code has {_brief(ours)}. "
                "Use the version of the code that trained it (see provenance.json)."
            )


def _conversion(changed: list[str], path: Path) -> str:
    """Say how a run goes on with a memory of another size, if nothing else differs."""
    if not all(re.match(r"model\.mixer(\[\d+\])?\.memory: \d+, not", line) for line in changed):
        return ""
    command = f"python -m scripts.resize_memory {path} --memory N --out NEW_RUN"
    return f"\nThis makes a run that goes on with a memory of N keys:\n  {command}"


def replace_text(path: Path, text: str) -> None:
    """Write a file at once: a process killed meanwhile leaves it as it was."""
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def _tokenizer(data: DataConfig) -> dict:
    vocabulary = data.vocabulary()
    return {
        "class": type(vocabulary).__name__,
        "hash": vocabulary_hash(vocabulary),
        "size": len(vocabulary.names),
        "names": list(vocabulary.names),
    }


def _brief(tokenizer: dict) -> str:
    return f"{tokenizer.get('class')} {tokenizer.get('hash')} ({tokenizer.get('size')} tokens)"


def _provenance(data: DataConfig) -> dict:
    device = jax.devices()[0]
    return {
        "command": shlex.join([sys.executable, *sys.orig_argv[1:]]),
        "commit": _commit(),
        "data": data.manifest(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}",
        "devices": f"{jax.device_count()} x {device.platform} {device.device_kind}",
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the git commit of this code, with `-dirty` if files differ from it."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip()
