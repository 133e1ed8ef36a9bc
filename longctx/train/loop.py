"""The training loop, in the order in which things happen."""

import math
import signal
import time
from pathlib import Path
from types import FrameType

import grain
import jax
import optax
from flax import nnx

from longctx.data.coordinates import rule_for
from longctx.evaluator import Trained
from longctx.train.checkpoint import Checkpoints
from longctx.train.config import Train
from longctx.train.log import Log
from longctx.train.run_folder import RunFolder
from longctx.train.state import TrainState
from longctx.train.step import Step, StepMetrics, compile_step, make_step
from longctx.train.throughput import flops_per_token, peak_flops


class NonFiniteLoss(ArithmeticError):
    """The loss, the gradient or the parameters became NaN or infinite."""


class Interrupted(Exception):
    """A signal asked the run to stop; everything is saved."""


def train(config: Train, run_dir: Path | str) -> Trained:
    """Train to the end of the config and return the result; continue if the folder has a start.

    Raises:
        ValueError: the folder holds another run, or config and data do not fit.
        OSError: the folder can't be written.
        CheckpointError: a checkpoint can't be read or written.
        NonFiniteLoss: names the step; the last checkpoint stays.
        Interrupted: after SIGTERM or SIGINT, once the state is saved.
    """
    folder = RunFolder(run_dir)
    folder.create(config)
    batches = config.data.training_batches(config.window, config.batch, config.seed)
    graphdef, optimizer, state = initialise(config)
    checkpoints = Checkpoints(folder.checkpoints, config)
    start = max(checkpoints.steps(), default=0)
    if start:
        state = checkpoints.restore(start, state, batches).state
    run = _Run(config, folder, graphdef, state, batches, checkpoints, start)
    try:
        step = make_step(graphdef, optimizer, config.accumulate, config.seed)
        run.steps(step)
    finally:
        run.log.close()
    checkpoints.close()
    return run.trained(config.steps)


def initialise(
    config: Train,
) -> tuple[nnx.GraphDef, optax.GradientTransformation, TrainState]:
    """Return the network's structure, the optimizer, and the state before the first step.

    Raises:
        ValueError: the network reads coordinates that the vocabulary does not supply.
    """
    vocabulary = config.data.vocabulary()
    rule_for(config.model.axes, vocabulary)
    model = config.model.build(len(vocabulary.names), config.compute_dtype, config.seed)
    graphdef, params = nnx.split(model)
    optimizer = config.optimizer.build(config.steps)
    return graphdef, optimizer, TrainState.create(params, optimizer, config.carry(model))


class _Run:
    """What the loop holds between two steps."""

    def __init__(self, config, folder, graphdef, state, batches, checkpoints, start):
        self.config: Train = config
        self.graphdef: nnx.GraphDef = graphdef
        self.state: TrainState = state
        self.batches: grain.DatasetIterator = batches
        self.checkpoints: Checkpoints = checkpoints
        self.log = Log(folder, start, config.steps)
        self.start = start
        self._schedule = config.optimizer.schedule(config.steps)
        self._peak, _ = peak_flops()
        self._flops = flops_per_token(config, state.params)

    def trained(self, step: int) -> Trained:
        config = self.config
        return Trained(self.graphdef, self.state.params, config.data, config.window, step)

    def steps(self, step_function: Step) -> None:
        """Take all remaining steps."""
        config, take = self.config, None
        since, tokens, pending = time.perf_counter(), 0, None
        with _StopRequest() as stop:
            for step in range(self.start + 1, config.steps + 1):
                batch = next(self.batches)
                take = take or compile_step(step_function, self.state, batch)
                self.state, metrics = take(self.state, batch)
                tokens += int(batch.weights.sum())
                if pending is not None:
                    self._check(*pending)
                pending = (step, metrics)
                last = step == config.steps
                if last or step % config.log_every == 0:
                    self._check(*pending)
                    now = time.perf_counter()
                    self._log_step(step, metrics, tokens / (now - since))
                    since, tokens = now, 0
                begin = time.perf_counter()
                measured = self._evaluate(step)
                asked = stop.asked  # once: a signal may come at any line
                if last or asked or step % config.save_every == 0:
                    self._check(*pending)
                    norm = jax.jit(optax.tree.norm)(self.state.params)
                    self._require_finite(step, {"norm of the parameters": norm})
                    self.checkpoints.save(step, self.state, self.batches, measured)
                since += time.perf_counter() - begin
                if asked and not last:
                    self.checkpoints.wait()
                    raise Interrupted(
                        f"stopped by {asked} after step {step}, which is saved; "
                        "the same command continues"
                    )

    def _check(self, step: int, metrics: StepMetrics) -> None:
        values = {"loss": metrics.loss, "norm of the gradient": metrics.grad_norm}
        self._require_finite(step, values)

    def _require_finite(self, step: int, values: dict[str, jax.Array]) -> None:
        if not all(math.isfinite(float(value)) for value in values.values()):
            self.checkpoints.wait()
            kept = self.checkpoints.steps()
            text = " and ".join(f"the {name} is {float(value)}" for name, value in values.items())
            raise NonFiniteLoss(
                f"step {step}: {text}. "
                + (f"The checkpoint of step {kept[-1]} is kept. " if kept else "")
                + "Lower the learning rate, warm up longer, or compute in float32."
            )

    def _log_step(self, step: int, metrics: StepMetrics, speed: float) -> None:
        loss = float(metrics.loss)
        values = {
            "train/loss": loss,
            "train/learning_rate": float(self._schedule(step - 1)),
            "train/grad_norm": float(metrics.grad_norm),
            "speed/tokens_per_second": speed,
            "speed/model_flop_utilisation": speed * self._flops / self._peak,
        } | {name: float(value) for name, value in metrics.told.items()}
        self.log.write(step, values)
        self.log.advance(step, loss, speed)

    def _evaluate(self, step: int) -> dict[str, float]:
        last = step == self.config.steps
        due = [e for e in self.config.evaluators if last or step % e.every == 0]
        measured: dict[str, float] = {}
        for evaluator in due:
            values = dict(evaluator.run(self.trained(step)))
            self.log.write(step, values)
            measured |= {name: v for name, v in values.items() if isinstance(v, float)}
        if measured:
            shown = "  ".join(f"{name} {value:.4f}" for name, value in measured.items())
            self.log.say(f"step {step}: {shown}")
        return measured


class _StopRequest:
    """While active, SIGTERM and SIGINT ask for a stop at the end of the step."""

    asked: str | None = None

    def __enter__(self) -> "_StopRequest":
        self._before = {s: signal.signal(s, self._note) for s in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
