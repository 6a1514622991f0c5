"""A number tuned for each arm, on seeds that the test does not use and on a held-out tenth of the training text."""

import contextlib
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partwise.comparison.plan import Arm, Plan
from partwise.comparison.pool import Job
from partwise.comparison.protocol import Claim
from partwise.comparison.results import final_values
from partwise.config import ConfigError
from partwise.overrides import apply_overrides, flatten, parse_overrides
from partwise.train.settings import RunConfig

FIRST_SEED = 1_000_000
"""Of tuning; seeds of a test lie below."""

NewJob = Callable[[Path, str, int, RunConfig], Job]
Train = Callable[[list[Job]], None]


@dataclass(frozen=True)
class Tune:
    """A setting, and its values as they were written."""

    path: str
    values: tuple[str, ...]

    def of(self, arm: Arm, value: str) -> Arm:
        """The arm at that value."""
        word = f"{self.path}={value}"
        values = apply_overrides(arm.config.to_dict(), parse_overrides([word]))
        return Arm(f"{arm.name} {word}", (*arm.overrides, word), RunConfig.from_dict(values))

    def default(self, arm: Arm) -> Any:
        return dict(flatten(arm.config.to_dict())).get(tuple(self.path.split(".")))


def parse_tune(text: str) -> Tune:
    """`train.lr=1e-4,3e-4,1e-3`. Raises ConfigError."""
    path, equals, values = text.partition("=")
    found = tuple(value.strip() for value in values.split(",") if value.strip())
    if not path.strip() or not equals or len(found) < 2 or len(set(found)) < len(found):
        raise ConfigError(f"--tune {text}: give a setting and two different values or more: train.lr=1e-4,3e-4,1e-3")
    with contextlib.suppress(ValueError):  # in order, so that a best value at the edge is one
        found = tuple(sorted(found, key=float))
    return Tune(path.strip().removeprefix("--"), found)


def check_seeds(plan: Plan) -> None:
    """Raises ConfigError where a seed would serve both tuning and test."""
    if plan.first_seed + plan.seeds > FIRST_SEED:
        raise ConfigError(
            f"--first-seed {plan.first_seed}: seeds from {FIRST_SEED:,} on are used for tuning, and none may serve both"
        )


def run_tuning(
    plan: Plan, tune: Tune, seeds: int, folder: Path, new_job: NewJob, train: Train
) -> tuple[Plan, dict[str, Any]]:
    """Train every claimed arm and the baseline at every value; the plan with each arm's best beside its default.

    The best has the lowest mean loss on the held-out text; a value at which a run diverged cannot be it.
    """
    check_seeds(plan)
    claimed = {claim.arm for claim in plan.claims if claim.role == "claim"} | {plan.arms[0].name}
    arms = [arm for arm in plan.arms if arm.name in claimed]
    jobs: list[Job] = []
    for number, arm in enumerate(arms):
        for value in tune.values:
            config = tune.of(arm, value).config
            config = config.model_copy(update={"train": config.train.model_copy(update={"held_out": True})})
            for seed in range(FIRST_SEED, FIRST_SEED + seeds):
                seeded = config.model_copy(update={"train": config.train.model_copy(update={"seed": seed})})
                path = folder / f"{number}-{value}" / f"seed-{seed}"
                jobs.append(new_job(path, f"{arm.name} {tune.path}={value}", seed, seeded))
    began = time.monotonic()
    train(jobs)
    values = final_values(jobs)
    rows = []
    for arm in arms:
        means = []
        for value in tune.values:
            losses = list(values[f"{arm.name} {tune.path}={value}"].values())
            means.append(statistics.fmean(losses) if all(map(math.isfinite, losses)) else None)
        known = [mean for mean in means if mean is not None]
        if not known:
            raise ConfigError(f"--tune {tune.path}: {arm.name} diverged at every value: give smaller ones")
        best = means.index(min(known))
        row = {"arm": arm.name, "default": tune.default(arm), "means": means, "best": tune.values[best]}
        rows.append(row | {"inside": 0 < best < len(means) - 1})
    found = {
        "path": tune.path,
        "values": list(tune.values),
        "seeds": list(range(FIRST_SEED, FIRST_SEED + seeds)),
        "runs": len(jobs),
        "seconds": time.monotonic() - began,
        "arms": rows,
    }
    return with_best(plan, tune, rows), found


def with_best(plan: Plan, tune: Tune, rows: list[dict[str, Any]]) -> Plan:
    """The plan, and each arm at its best against the baseline at its best. An arm whose default is best stands for both."""
    at_best = {}
    arms = list(plan.arms)
    for row in rows:
        arm = plan.arm(row["arm"])
        best = tune.of(arm, row["best"])
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
