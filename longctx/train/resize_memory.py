"""A run goes on with a memory of another size, which holds what the old one held."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

from longctx.memory import resized, with_memory
from longctx.train.checkpoint import Checkpoints
from longctx.train.loop import initialise
from longctx.train.run_folder import RunFolder
from longctx.transformer import Transformer


def resize_memory(run_dir: Path | str, memory: int, out: Path | str) -> int:
    """Write a run that goes on from another's last checkpoint with `memory` keys; return its step.

    Parameters, optimizer and place in the data stay. A larger memory keeps all that was in the old
    one, a smaller one the newest of it.

    Raises:
        FileNotFoundError: there is no run, or no checkpoint yet.
        ValueError: the network has no memory, or it would be smaller than its `top_k`, or a run
            lies in `out` already.
        CheckpointError: the checkpoint can't be read, or the new one not be written.
    """
    folder, target = RunFolder(run_dir), RunFolder(out)
    config = folder.config()
    folder.check_tokenizer(config.data)
    if not isinstance(config.model, Transformer):
        raise ValueError(f"a {type(config.model).__name__} has no memory whose size could change")
    if target.exists():
        raise ValueError(f"{out} holds a run already; choose another --out")
    changed = replace(config, model=with_memory(config.model, memory))
    batches = config.data.training_batches(config.window, config.batch, config.seed)
    with closing(Checkpoints(folder.checkpoints, config)) as checkpoints:
        step = max(checkpoints.steps(), default=None)
        if step is None:
            raise FileNotFoundError(f"{folder.path} holds no checkpoint yet; let it train longer")
        state = checkpoints.restore(step, initialise(config)[2], batches).state
    if state.carry is not None:
        state = replace(state, carry=resized(state.carry, initialise(changed)[2].carry))
    with closing(Checkpoints(target.checkpoints, changed)) as written:
        written.save(step, state, batches, {})
    target.create(changed)  # last: a folder with a config is a whole run
    return step
