"""Gather finished trials into `Results`, which the workload completes and judging judges."""

from collections.abc import Sequence
from typing import Any

from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.results import ArmResult, Protocol, Results
from partwise.comparison.trials.trial import REPEATING, Trial
from partwise.config import ConfigError
from partwise.config.overrides import difference


def gather(plan: Plan, trials: Sequence[Trial]) -> Results:
    """The results of all trials, not yet judged; all must have finished."""
    return Results(
        question=plan.question,
        protocol=Protocol.from_rules(plan.rules),
        seeds=tuple(sorted({trial.seed for trial in trials})),
        config=plan.arms[0].config.to_stored(),
        arms=tuple(gather_arm(plan, arm, [trial for trial in trials if trial.arm == arm.name]) for arm in plan.arms),
    )


def gather_arm(plan: Plan, arm: Arm, trials: Sequence[Trial]) -> ArmResult:
    """The results of an arm. Raises ConfigError if a trial was scored on other items than those of the plan."""
    changes: list[Any] = difference(plan.arms[0].config.to_dict(), arm.config.to_dict())
    outcomes = []
    for trial in sorted(trials, key=lambda trial: trial.seed):
        outcome, planned = trial.outcome(plan.rules.metric), plan.task_items.get(arm.name)
        if planned and outcome.task_score and outcome.task_score.items_sha256 != planned:
            raise ConfigError(
                f"{trial.folder} was scored on other items of {outcome.task_score.task} than planned: restore the task's "
                f"files, delete this run's folder and repeat the command{REPEATING}"
            )
        outcomes.append(outcome)
    return ArmResult(
        name=arm.name,
        overrides=arm.overrides,
        config_changes=tuple((path, old, new) for path, old, new in changes),
        trials=tuple(outcomes),
    )
