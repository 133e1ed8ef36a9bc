"""Asynchronous checkpoints: the last and the best, verified when they are read."""

import json
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import grain
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy

from longctx.data.vocabulary import vocabulary_hash
from longctx.serialise import differences, from_json, to_json
from longctx.train.config import Train
from longctx.train.state import TrainState, fingerprint


class CheckpointError(Exception):
    """A checkpoint can't be written or read; the text says which, why, and what to do."""


class Restored(NamedTuple):
    """What a checkpoint gives back."""

    step: int
    state: TrainState


class Checkpoints:
    """The checkpoints of a run: `save` returns at once, `wait` until they are on disk.

    A checkpoint appears under its final name only when it is complete, so a process killed while
    saving leaves the earlier ones as they were. Each carries the config, the tokenizer's hash and
    a fingerprint of every array, all of which are checked on reading.

    Raises:
        CheckpointError: the score of one is damaged.
    """

    def __init__(self, folder: Path, config: Train):
        self.folder, self.config = folder, config

        def score(metrics):
            return metrics[config.best]

        keep = preservation_policy.AnyPreservationPolicy(
            [
                preservation_policy.LatestN(1),
                preservation_policy.BestN(
                    get_metric_fn=score,
                    reverse=True,
                    n=1,
                    keep_checkpoints_without_metrics=False,
                ),
            ]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=keep, best_fn=score, best_mode="min", create=True
        )
        self._check_scores()
        self._manager = ocp.CheckpointManager(folder, options=options)

    def steps(self) -> list[int]:
        """Return the steps at which a complete checkpoint exists, in order."""
        return sorted(int(path.name) for path in self.folder.glob("[0-9]*") if path.name.isdigit())

    def best_step(self) -> int | None:
        """Return the step with the smallest `config.best`, or the last one, or None."""
        scored = {}
        for step in self.steps():
            metrics = self._manager.metrics(step)
            if metrics and self.config.best in metrics:
                scored[step] = metrics[self.config.best]
        if scored:
            return min(scored, key=lambda step: scored[step])
        return max(self.steps(), default=None)

    def save(
        self, step: int, state: TrainState, data: grain.DatasetIterator, metrics: dict[str, float]
    ) -> None:
        """Start to save; an earlier save that failed is reported here.

        Raises:
            CheckpointError: the disk is full, or the folder can't be written.
        """
        meta = {
            "config": to_json(self.config),
            "tokenizer": vocabulary_hash(self.config.data.vocabulary()),
            "fingerprint": np.asarray(fingerprint(state)).tolist(),
            "place": data.get_state(),
        }
        score = metrics.get(self.config.best, math.nan)
        try:
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(state),
                    data=grain.checkpoint.CheckpointSave(data),
                    meta=ocp.args.JsonSave(meta),
                ),
                metrics={self.config.best: score} if math.isfinite(score) else None,
                force=True,
            )
        except Exception as error:
            raise self._cannot_save(error) from error

    def wait(self) -> None:
        """Return when everything that was saved is on disk.

        Raises:
            CheckpointError: it could not be written.
        """
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            raise self._cannot_save(error) from error

    def restore(
        self, step: int, template: TrainState, data: grain.DatasetIterator | None = None
    ) -> Restored:
        """Return the state at a step; `data` is set to where it was.

        Raises:
            CheckpointError: it is damaged, of another config, or of another tokenizer.
        """
        try:
            meta = self._manager.restore(
                step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            )["meta"]
            stored_config, stored_tokenizer = meta["config"], meta["tokenizer"]
            stored_fingerprint, place = meta["fingerprint"], meta["place"]
        except Exception as error:
            raise self._damaged(step, error) from error
        self._check_origin(step, stored_config, stored_tokenizer)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        items: dict[str, Any] = {"state": ocp.args.StandardRestore(abstract)}
        if data is not None:
            items["data"] = grain.checkpoint.CheckpointRestore(data)
        try:
            state = self._manager.restore(step, args=ocp.args.Composite(**items))["state"]
        except Exception as error:
            raise self._damaged(step, error) from error
        if np.asarray(fingerprint(state)).tolist() != stored_fingerprint:
            raise self._damaged(step, "its arrays are not the ones that were saved")
        if data is not None and data.get_state() != place:
            raise self._damaged(step, "its place in the data is not the one that was saved")
        return Restored(step, state)

    def close(self) -> None:
        """Wait for what is being saved and let go of the folder."""
        self.wait()
        self._manager.close()

    def _check_scores(self) -> None:
        for step in self.steps():
            path = self.folder / str(step) / "metrics" / "metrics"
            try:
                float(json.loads(path.read_text())[self.config.best])
            except FileNotFoundError:
                continue  # not evaluated, or what a kill left of a deletion
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise self._damaged(step, f"its score can't be read, {error!r}") from error

    def _check_origin(self, step: int, config: str, tokenizer: str) -> None:
        ours = vocabulary_hash(self.config.data.vocabulary())
        if tokenizer != ours:
            raise CheckpointError(
                f"checkpoint {step} in {self.folder} was made with the tokenizer {tokenizer}, "
                f"but this run's is {ours}; use the code and flags that made it"
            )
        try:
            changed = differences(self.config, from_json(config))
        except ValueError as error:
            raise CheckpointError(f"checkpoint {step} in {self.folder}: {error}") from None
        if changed:
            raise CheckpointError(
                f"checkpoint {step} in {self.folder} is of another config. This run has:\n  "
                + "\n  ".join(changed)
            )

    def _cannot_save(self, error: Exception) -> CheckpointError:
        return CheckpointError(
            f"a checkpoint can't be saved in {self.folder}: {_brief(error)}. "
            f"Free on that disk: {shutil.disk_usage(self.folder).free:,} bytes. "
            f"Complete checkpoints there: {self.steps() or 'none'}. "
            "Make room (or give rights) and start again: it continues from the last one."
        )

    def _damaged(self, step: int, reason: Exception | str) -> CheckpointError:
        others = [other for other in self.steps() if other != step]
        remedy = (
            f"Delete {self.folder / str(step)} to continue from step {max(others)}."
            if others
            else "There is no other; train again in a new --run-dir."
        )
        return CheckpointError(
            f"checkpoint {step} in {self.folder} is damaged: {_brief(reason)}. {remedy}"
        )


def _brief(reason: Exception | str) -> str:
    text = " ".join(str(reason).split()) or type(reason).__name__
    return text if len(text) <= 300 else text[:300] + " ..."
