"""Command-line flags over a config: every field is a flag, every variant its own spelling."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import tyro

from longctx.attention.patterns import Pattern
from longctx.attention.positions import Position
from longctx.train.config import Train
from longctx.variants import members, parse, spell

FAMILIES: tuple[type, ...] = (Position, Pattern)
"""Whose members a flag may swap, e.g. `--model.mixer.pattern "Local(size=512)"`."""

Result = TypeVar("Result")


class TrainingFlags(NamedTuple):
    """What the command line of a training run says."""

    run_dir: Path
    config: Train


def training_flags(default: Train, arguments: Sequence[str], prog: str) -> TrainingFlags:
    """Return the config with the flags applied; exits with status 2 as `call_with_flags`."""

    def flags(
        run_dir: Path, config: Annotated[Train, tyro.conf.arg(name="")] = default
    ) -> TrainingFlags:
        """Train a model. The same command continues a run that was stopped.

        Args:
            run_dir: Folder of the run: its config, log and checkpoints.
        """
        return TrainingFlags(run_dir, config)

    return call_with_flags(flags, arguments, prog)


def call_with_flags(function: Callable[..., Result], arguments: Sequence[str], prog: str) -> Result:
    """Call a function with arguments from the command line, described by its docstring.

    Unknown flags and bad values end the program with status 2, naming the closest that would do.
    """
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_variant_rule)
    options = (tyro.conf.FlagConversionOff,)
    return tyro.cli(function, args=arguments, prog=prog, registry=registry, config=options)


def _variant_rule(
    info: tyro.constructors.PrimitiveTypeInfo,
) -> tyro.constructors.PrimitiveConstructorSpec | None:
    kind = info.type
    family = next((f for f in FAMILIES if isinstance(kind, type) and issubclass(kind, f)), None)
    if family is None:
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(sorted(members(family))) + "}(...)",
        instance_from_str=lambda words: parse(words[0], family),
        is_instance=lambda value: isinstance(value, family),
        str_from_instance=lambda value: [spell(value)],
    )
