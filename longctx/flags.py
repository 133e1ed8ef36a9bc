"""Command-line flags over a config: every field is a flag, every variant its own spelling."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar, get_type_hints

import tyro

from longctx.attention.patterns import Pattern
from longctx.attention.positions import Position
from longctx.data.tokenizers.base import Tokenizer
from longctx.mixer import MixerConfig
from longctx.train.config import Train
from longctx.variants import members, parse, parse_value, spell

FAMILIES: tuple[type, ...] = (Position, Pattern, Tokenizer)
"""Whose members a flag may swap, e.g. `--model.mixer.pattern "Local(size=512)"`."""

NO_MIXER = "that of the config"

Result = TypeVar("Result")


class TrainingFlags(NamedTuple):
    """What the command line of a training run says."""

    run_dir: Path
    config: Train


def training_flags(default: Train, arguments: Sequence[str], prog: str) -> TrainingFlags:
    """Return the config with the flags applied; exits with status 2 as `call_with_flags`."""

    default, arguments = _take_mixer(default, arguments, prog)

    def flags(
        run_dir: Path,
        mixer: Annotated[str, tyro.conf.arg(name="model.mixer")] = NO_MIXER,
        config: Annotated[Train, tyro.conf.arg(name="")] = default,
    ) -> TrainingFlags:
        """Train a model. The same command continues a run that was stopped.

        Args:
            run_dir: Folder of the run: its config, log and checkpoints.
            mixer: Another mixer, like "LSTM" or "Attention(heads=4, pattern=Local(64))", or one
                for each layer, like "(Attention(pattern=Local(64)),) * 4 + (Attention,) * 2".
                Flags of its fields come on top.
        """
        return TrainingFlags(run_dir, config)

    return call_with_flags(flags, arguments, prog)


def _take_mixer(default: Train, arguments: Sequence[str], prog: str) -> tuple[Train, Sequence[str]]:
    """Return the config with the mixer that `--model.mixer` spells, and the other arguments."""

    def flags(mixer: Annotated[str, tyro.conf.arg(name="model.mixer")] = NO_MIXER) -> str:
        return mixer

    text, rest = tyro.cli(
        flags, args=arguments, prog=prog, add_help=False, return_unknown_args=True
    )
    if text == NO_MIXER:
        return default, arguments
    try:
        hint = get_type_hints(type(default.model)).get("mixer", MixerConfig)
        mixer = parse_value(text, hint)
        layers = {"layers": len(mixer)} if isinstance(mixer, tuple) else {}
        model = replace(default.model, mixer=mixer, **layers)  # pyright: ignore
    except (TypeError, ValueError) as error:
        print(f"--model.mixer: {error}", file=sys.stderr)
        sys.exit(2)
    return replace(default, model=model), rest


def call_with_flags(function: Callable[..., Result], arguments: Sequence[str], prog: str) -> Result:
    """Call a function with arguments from the command line, described by its docstring.

    Unknown flags and bad values end the program with status 2, naming the closest that would do.
    """
    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_variant_rule)
    options = (tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands)
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
