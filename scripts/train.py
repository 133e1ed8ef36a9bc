"""Train a model: python -m scripts.train CONFIG --run-dir DIR [flags]."""

from configs.catalogue import load_config, names
from longctx.flags import training_flags
from longctx.train.loop import train
from scripts.program import run

USAGE = """usage: python -m scripts.train CONFIG --run-dir DIR [flags]

CONFIG is one of these, or a path to a Python file with a function config():
{configs}

python -m scripts.train CONFIG --help lists the flags of a config."""


def main(arguments: list[str]) -> None:
    """Train the config that the command line names."""
    if not arguments or arguments[0].startswith("-"):
        configs = "\n".join(f"  {name:14} {text}" for name, text in sorted(names().items()))
        print(USAGE.format(configs=configs))
        if not set(arguments) & {"-h", "--help"}:
            raise ValueError("give the CONFIG first")
        return
    name, *rest = arguments
    flags = training_flags(load_config(name), rest, prog=f"python -m scripts.train {name}")
    trained = train(flags.config, flags.run_dir)
    print(f"trained {trained.step} steps; {flags.run_dir} holds the checkpoints and the log")


if __name__ == "__main__":
    run(main)
