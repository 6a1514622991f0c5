"""A kind of trial that is not ours: what a comparison needs of it is one subclass of `Trial` and one of `Workload`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.experiment import Comparison
from partwise.comparison.results import Results, TrialResult
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.trials.executor import Executor
from partwise.comparison.trials.trial import Trial
from partwise.comparison.trials.workload import Workload
from partwise.config import ConfigError

pytestmark = pytest.mark.usefixtures("here")

STEPS = 10


@dataclass(frozen=True)
class Settings:
    """The configuration of an arm: the loss it tends to."""

    loss: float

    def to_dict(self) -> dict[str, float]:
        return {"loss": self.loss}

    def to_stored(self) -> dict[str, float]:
        return self.to_dict()

    @classmethod
    def from_stored(cls, values: Mapping[str, float]) -> Self:
        return cls(**values)

    def with_override(self, override: str) -> Self:
        raise ConfigError(f"{override}: nothing to change")


@dataclass
class Evaluated(Trial):
    """A noisy exponential curve, written to a file."""

    loss: float = 0.0

    def progress(self) -> int:
        return STEPS if (self.folder / "curve.json").exists() else 0

    def stored_status(self) -> str | None:
        return "done" if self.progress() else None

    def evaluate(self) -> None:
        noise = np.random.default_rng(self.seed).normal(0, 0.01)
        own = np.random.default_rng([self.seed, round(10_000 * self.loss)]).normal(0, 0.001)
        curve = [(step, self.loss + math.exp(-step) + noise + own) for step in range(STEPS + 1)]
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "curve.json").write_text(json.dumps(curve))

    def outcome(self, metric: str) -> TrialResult:
        curve = json.loads((self.folder / "curve.json").read_text())
        return TrialResult(seed=self.seed, value=curve[-1][1], evaluations=tuple((*point, point[1]) for point in curve))


class InThisProcess(Executor):
    """Evaluates one trial per call of `watch`; after `limit` trials, it is interrupted."""

    def __init__(self, limit: int, evaluated: list[str]) -> None:
        self.waiting: list[Evaluated] = []
        self.limit, self.evaluated = limit, evaluated

    def submit(self, trials: Sequence[Trial]) -> None:
        self.waiting += [trial for trial in trials if isinstance(trial, Evaluated)]

    def watch(self, seconds: float) -> Sequence[Trial]:
        if len(self.evaluated) == self.limit:
            raise KeyboardInterrupt
        trial = self.waiting.pop(0)
        trial.evaluate()
        self.evaluated.append(f"{trial.arm} {trial.seed}")
        trial.status = "failed: no reason" if trial.loss > 100 else "done"
        return [trial]

    def cancel(self) -> None:
        self.waiting.clear()


@dataclass
class Function(Workload):
    limit: int = 1000
    evaluated: list[str] = field(default_factory=list)

    def prepare(self, plan: Plan) -> str:
        return "no data"

    def choose_setup(self, plan: Plan, timed: bool) -> dict[str, Any]:
        return {"machine": {"cpu": "any"}}

    def restore_setup(self, plan: Plan, setup: Mapping[str, Any]) -> None:
        assert setup["machine"] == {"cpu": "any"}

    def executor(self) -> InThisProcess:
        return InThisProcess(self.limit, self.evaluated)

    def trial(self, arm: Arm, seed: int, folder: Path) -> Evaluated:
        status = "done" if (folder / "curve.json").exists() else "waiting"
        return Evaluated(arm.name, seed, folder, STEPS, status, arm.config.loss)


def make_plan(losses: Mapping[str, float]) -> Plan:
    arms = tuple(Arm(name, (), Settings(loss)) for name, loss in losses.items())
    first, *others = losses
    claims = tuple(Claim(name, first) for name in others)
    return Plan(arms, 8, Rules(margin=0.01, looks=(4, 8)), claims)


LOSSES = {"base": 1.0, "lower": 0.9, "same": 1.0005, "higher": 1.2}


def test_another_kind_of_trial_is_compared_resumed_and_reported(tmp_path: Path) -> None:
    plan = make_plan(LOSSES)
    whole = Comparison(tmp_path / "whole", plan, Function())
    assert whole.run().verdicts == {"lower": "better", "same": "equivalent", "higher": "worse"}
    assert whole.results.claims[0].effect.sentence in whole.report.read_text()
    assert Results.from_json(tmp_path / "whole" / "results.json") == whole.results

    stopped = Function(limit=7)
    cut = Comparison(tmp_path / "cut", plan, stopped)
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    resumed = Function()
    rest = Comparison(tmp_path / "cut", plan, resumed)
    assert rest.run().claims == whole.results.claims
    assert len(stopped.evaluated) == 7 and not {*stopped.evaluated} & {*resumed.evaluated}
    assert whole.workload.evaluated == stopped.evaluated + resumed.evaluated  # type: ignore[attr-defined]


def test_a_failed_trial_is_named(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path / "failed", make_plan({"base": 1.0, "wild": 1000.0}), Function())
    with pytest.raises(ConfigError, match="a run failed: wild, seed 0: no reason; run the same command again"):
        comparison.run()


def test_another_kind_of_trial_cannot_be_matched(tmp_path: Path) -> None:
    comparison = Comparison(tmp_path / "matched", make_plan(LOSSES), Function(), match="parameters")
    with pytest.raises(ConfigError, match="--match parameters: these arms cannot be matched"):
        comparison.run()
