"""A finished or running training run, read back from its folder."""

from pathlib import Path
from typing import Literal

from longctx.evaluator import Trained
from longctx.train.checkpoint import Checkpoints
from longctx.train.loop import initialise
from longctx.train.run_folder import RunFolder

Which = Literal["best", "last"]


def load_trained(run_dir: Path | str, which: Which = "best") -> Trained:
    """Return the model of a run at its best or last checkpoint.

    Raises:
        FileNotFoundError: the folder holds no run, or the run no checkpoint yet.
        ValueError: its config is damaged, or its tokenizer is not this code's.
        CheckpointError: the checkpoint is damaged or of another config or tokenizer.
    """
    folder = RunFolder(run_dir)
    config = folder.config()
    folder.check_tokenizer(config.data)
    if not folder.checkpoints.is_dir():
        raise FileNotFoundError(f"{folder.path} holds no checkpoint yet; let it train longer")
    checkpoints = Checkpoints(folder.checkpoints, config)
    step = checkpoints.best_step() if which == "best" else max(checkpoints.steps(), default=None)
    if step is None:
        raise FileNotFoundError(f"{folder.path} holds no checkpoint yet; let it train longer")
    graphdef, _, template = initialise(config)
    params = checkpoints.restore(step, template).state.params
    checkpoints.close()
    return Trained(graphdef, params, config.data, config.window, step)
