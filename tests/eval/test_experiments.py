"""Experiments: every variant is trained once, measured once, and shown with its interval."""

import math
from dataclasses import replace

import pytest

from eval.accuracy import Accuracy
from eval.experiments.base import Experiment, interval, rows, run_one
from eval.experiments.recall import RecallExperiment
from longctx.data.recall import Recall


class Small(Experiment):
    """The recall experiment, cut to two steps."""

    measured = 0

    def variants(self):
        data = Recall(pairs=2, gap=4, keys=4, values=4)
        return {
            name: replace(config, data=data, steps=2, batch=2, window=data.length)
            for name, config in RecallExperiment().variants().items()
        }

    def measure(self, trained):
        self.measured += 1
        return dict(Accuracy(split="test").run(trained))


def test_what_is_done_is_not_done_again(tmp_path):
    small = Small()
    first = run_one(small, "local", 1, tmp_path)
    assert 0.0 <= first["test/accuracy"] <= 1.0
    assert run_one(small, "local", 1, tmp_path) == first
    assert small.measured == 1
    with pytest.raises(ValueError, match="there is no variant 'other'; there are local"):
        run_one(small, "other", 1, tmp_path)


def test_intervals_are_students():
    """For 1, 2, 3: t(0.975, 2) = 4.3027 and a standard error of 1 / sqrt(3)."""
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-3)
    assert math.isnan(interval([1.0])[1])
    assert rows({"a": [{"x": 1.0}, {"x": 3.0}]}) == [["a", "2.000 ± 12.706"]]
