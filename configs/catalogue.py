"""Finds experiments by name or path."""

import importlib
import importlib.util
import pkgutil
from pathlib import Path

import configs
from longctx.train.config import Train
from longctx.variants import did_you_mean


def names() -> dict[str, str]:
    """Return each experiment's name and the first line of its docstring."""
    found = {}
    for module in pkgutil.iter_modules(configs.__path__):
        loaded = importlib.import_module(f"configs.{module.name}")
        if hasattr(loaded, "config"):
            found[module.name] = (loaded.__doc__ or "").strip().partition("\n")[0]
    return found


def load_config(name: str) -> Train:
    """Return the config of an experiment: a name in this folder, or a path to a Python file.

    Raises:
        ValueError: there is none, or its `config()` returns something else.
    """
    if name.endswith(".py"):
        config = _from_file(Path(name))
    elif name in names():
        config = importlib.import_module(f"configs.{name}").config()
    else:
        raise ValueError(f"there is no config {name!r}. {did_you_mean(name, sorted(names()))}")
    if not isinstance(config, Train):
        raise ValueError(f"config() of {name} returns a {type(config).__name__}, not a Train")
    return config


def _from_file(path: Path) -> object:
    if not path.is_file():
        raise ValueError(f"there is no config file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "config"):
        raise ValueError(f"{path} has no function config()")
    return module.config()
