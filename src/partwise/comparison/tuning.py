"""Tune one setting for each arm, on seeds that the test does not use and a held-out tenth of the training split."""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.results import TunedArm, Tuning
from partwise.comparison.stats.protocol import Claim
from partwise.comparison.trials.outcome import final_values
from partwise.comparison.trials.worker_pool import Job
from partwise.config import ConfigError
from partwise.config.overrides import apply_overrides, flatten, parse_overrides
from partwise.train.config import RunConfig

FIRST_TUNING_SEED = 1_000_000
"""Test seeds are below it."""

NewJob = Callable[[Path, str, int, RunConfig], Job]
Train = Callable[[list[Job]], None]


@dataclass(frozen=True)
class Tune:
    """A setting and the values to try, as strings."""

    key: str
    values: tuple[str, ...]

    def apply(self, arm: Arm, value: str) -> Arm:
        """The arm with the setting at `value`."""
        override = f"{self.key}={value}"
        values = apply_overrides(arm.config.to_dict(), parse_overrides([override]))
        return Arm(f"{arm.name} {override}", (*arm.overrides, override), RunConfig.from_dict(values))

    def default(self, arm: Arm) -> Any:
        return dict(flatten(arm.config.to_dict())).get(tuple(self.key.split(".")))


def parse_tune(text: str) -> Tune:
    """Parse `train.lr=1e-4,3e-4,1e-3`. Raises ConfigError."""
    key, equals, text_values = text.partition("=")
    values = tuple(value.strip() for value in text_values.split(",") if value.strip())
    if not key.strip() or not equals or len(values) < 2 or len(set(values)) < len(values):
        raise ConfigError(
            f"--tune {text}: expected a setting and at least two different values, such as train.lr=1e-4,3e-4,1e-3"
        )
    with contextlib.suppress(ValueError):  # numbers in order, to detect a best value at the edge of the range
        values = tuple(sorted(values, key=float))
    return Tune(key.strip().removeprefix("--"), values)


def check_seeds(plan: Plan) -> None:
    """Raise ConfigError if a test seed is also a tuning seed."""
    if plan.first_seed + plan.seeds > FIRST_TUNING_SEED:
        raise ConfigError(
            f"--first-seed {plan.first_seed}: seeds from {FIRST_TUNING_SEED:,} on are for tuning; choose a smaller one"
        )


def run_tuning(plan: Plan, tune: Tune, seeds: int, folder: Path, new_job: NewJob, train: Train) -> tuple[Plan, Tuning]:
    """Train the baseline and every claimed arm at every value, and add each arm at its best value to the plan.

    The best value has the lowest mean loss on the held-out text; values with a diverged run are excluded.
    """
    check_seeds(plan)
    claimed = {claim.arm for claim in plan.claims if claim.role == "claim"} | {plan.arms[0].name}
    arms = [arm for arm in plan.arms if arm.name in claimed]
    jobs: list[Job] = []
    for number, arm in enumerate(arms):
        for value in tune.values:
            config = tune.apply(arm, value).config
            config = config.model_copy(update={"train": config.train.model_copy(update={"tuning_split": True})})
            for seed in range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + seeds):
                seeded = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
                path = folder / f"{number}-{value}" / f"seed-{seed}"
                jobs.append(new_job(path, f"{arm.name} {tune.key}={value}", seed, seeded))
    start = time.monotonic()
    train(jobs)
    values = final_values(jobs)
    rows = []
    for arm in arms:
        means = []
        for value in tune.values:
            losses = list(values[f"{arm.name} {tune.key}={value}"].values())
            means.append(statistics.fmean(losses) if all(map(math.isfinite, losses)) else None)
        finite = [mean for mean in means if mean is not None]
        if not finite:
            raise ConfigError(f"--tune {tune.key}: {arm.name} diverged at every value; try smaller values")
        best = means.index(min(finite))
        rows.append(
            TunedArm(
                arm=arm.name,
                default=tune.default(arm),
                means=tuple(means),
                best=tune.values[best],
                interior=0 < best < len(means) - 1,
            )
        )
    results = Tuning(
        key=tune.key,
        values=tune.values,
        seeds=tuple(range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + seeds)),
        runs=len(jobs),
        seconds=time.monotonic() - start,
        arms=tuple(rows),
    )
    return add_tuned_arms(plan, tune, rows), results


def add_tuned_arms(plan: Plan, tune: Tune, rows: list[TunedArm]) -> Plan:
    """Add each arm at its best value and its claim against the tuned baseline. An arm whose default is best is reused."""
    at_best = {}
    arms = list(plan.arms)
    for row in rows:
        arm = plan.arm(row.arm)
        best = tune.apply(arm, row.best)
        same = [other for other in arms if other.config == best.config]
        if same:
            best = same[0]
        else:
            arms.append(best)
        at_best[arm.name] = best.name
    claims = list(plan.claims)
    for claim in plan.claims:
        if claim.role == "claim" and claim.arm in at_best and claim.against in at_best:
            tuned = Claim(at_best[claim.arm], at_best[claim.against])
            if tuned not in claims:
                claims.append(tuned)
    return replace(plan, arms=tuple(arms), claims=tuple(claims))


def origin_of(arm: str, names: Iterable[str]) -> str:
    """The arm that a tuned arm was derived from, or the arm itself."""
    return max((name for name in names if arm.startswith(name)), key=len)
