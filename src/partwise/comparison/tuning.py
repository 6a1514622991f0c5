"""Tune one setting for each arm on seeds that the test does not use.

Training runs are tuned by their loss on a held-out tenth of the training split, other trials by the metric of the verdict.
"""

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partwise.comparison.design.plan import Arm, Plan
from partwise.comparison.results import TunedArm, Tuning, tuned_name
from partwise.comparison.stats.methods import find_method
from partwise.comparison.stats.protocol import Claim
from partwise.comparison.trials.trial import Trial
from partwise.comparison.tuning_file import TuningFile
from partwise.config import ConfigError
from partwise.config.overrides import flatten

FIRST_TUNING_SEED = 1_000_000
"""Test seeds are below it."""

MAX_WIDENINGS = 3
"""How often the range of values grows if a best value is at its edge."""

NewTrial = Callable[[Arm, int, Path], Trial]
FolderOf = Callable[[int, Arm, str], Path]
"""The folder of the trials of an arm, with its number, at a value."""
Train = Callable[[list[Trial]], None]


@dataclass(frozen=True)
class Tune:
    """A setting and the values to try, as strings; `only` if arms at their defaults are not judged."""

    key: str
    values: tuple[str, ...]
    only: bool = False

    def apply(self, arm: Arm, value: str) -> Arm:
        """The arm with the setting at `value`."""
        override = f"{self.key}={value}"
        name = tuned_name(arm.name, self.key, value)
        return Arm(name, (*arm.overrides, override), arm.config.with_override(override))

    def default(self, arm: Arm) -> Any:
        return dict(flatten(arm.config.to_dict())).get(tuple(self.key.split(".")))


def parse_tune(text: str) -> Tune:
    """Parse `train.lr=1e-4,3e-4,1e-3`. Raises ConfigError."""
    key, equals, text_values = text.partition("=")
    values = tuple(value.strip() for value in text_values.split(",") if value.strip())
    numbers = list[float]()
    with contextlib.suppress(ValueError):
        numbers = [float(value) for value in values]
        values = tuple(sorted(values, key=float))  # in order, to detect a best value at the edge of the range
    n_different = len(set(numbers or values))
    if not key.strip() or not equals or len(values) < 2 or n_different < len(values):
        raise ConfigError(
            f"--tune {text}: expected a setting and at least two different values, such as train.lr=1e-4,3e-4,1e-3"
        )
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"--tune {text}: expected finite values")
    return Tune(key.strip().removeprefix("--"), values)


def check_seeds(plan: Plan) -> None:
    """Raise ConfigError if a test seed is also a tuning seed."""
    if plan.first_seed + plan.seeds_of(plan.arms[0]) > FIRST_TUNING_SEED:
        raise ConfigError(
            f"--first-seed {plan.first_seed}: seeds from {FIRST_TUNING_SEED:,} on are for tuning; choose a smaller one"
        )


def run_tuning(
    plan: Plan,
    tune: Tune,
    seeds: int,
    folder_of: FolderOf,
    new_trial: NewTrial,
    train: Train,
    stored: TuningFile,
    held_out: bool = True,
) -> tuple[Plan, Tuning]:
    """Train the baseline and every claimed arm at every value, and add each arm at its best value to the plan.

    Reuses the losses in `stored`; saves new ones, even when interrupted.

    The best value has the lowest mean loss if the trials measure it on `held_out` data, else the best mean of the plan's
    metric; values with a diverged run are excluded. If it is at an edge of the range for any arm, the range grows by one
    value there, for all arms, at most three times.
    """
    check_seeds(plan)
    lower_is_better = held_out or plan.rules.lower_is_better
    claimed = {claim.arm for claim in plan.claims if claim.role == "claim"} | {plan.arms[0].name}
    arms = [arm for arm in plan.arms if arm.name in claimed]
    curves: dict[str, dict[str, tuple[float | None, ...]]] = {arm.name: {} for arm in arms}
    values, added = list(tune.values), list(tune.values)
    for widening in range(MAX_WIDENINGS + 1):
        measure(tuning_trials(arms, tune, added, seeds, folder_of, new_trial, stored), train, stored)
        for arm in arms:
            for value in added:
                found = stored.losses[tuned_name(arm.name, tune.key, value)]
                losses = (found[seed] for seed in tuning_seeds(seeds))
                curves[arm.name][value] = tuple(loss if math.isfinite(loss) else None for loss in losses)
        best = {arm.name: best_value(arm.name, tune.key, curves[arm.name], lower_is_better) for arm in arms}
        added = further_values(tune, arms, values, set(best.values()))
        if not added or widening == MAX_WIDENINGS:
            break
        values = sorted([*values, *added], key=float)
    unbracketed = edges(tune, arms, values) if added else set()
    rows = [
        TunedArm(
            arm=arm.name,
            default=tune.default(arm),
            means=tuple(mean_loss(curves[arm.name][value]) for value in values),
            best=best[arm.name],
            interior=best[arm.name] not in unbracketed,
            losses=tuple(curves[arm.name][value] for value in values),
        )
        for arm in arms
    ]
    results = Tuning(
        key=tune.key,
        values=tuple(values),
        seeds=tuple(tuning_seeds(seeds)),
        runs=len(arms) * len(values) * seeds,
        seconds=stored.seconds,
        arms=tuple(rows),
        held_out=held_out,
    )
    return add_tuned_arms(plan, tune, rows, lower_is_better), results


def tuning_seeds(n: int) -> range:
    return range(FIRST_TUNING_SEED, FIRST_TUNING_SEED + n)


def measure(trials: list[Trial], train: Train, stored: TuningFile) -> None:
    """Train the trials, if there are any, and store the values of those that finish, also if the others are interrupted."""
    if trials:
        start = time.monotonic()
        try:
            train(trials)
        finally:
            stored.add(trials, time.monotonic() - start)


def tuning_trials(
    arms: list[Arm],
    tune: Tune,
    values: list[str],
    seeds: int,
    folder_of: FolderOf,
    new_trial: NewTrial,
    stored: TuningFile,
) -> list[Trial]:
    """The trials of every arm at each of `values`, without those whose values are stored."""
    trials: list[Trial] = []
    for number, arm in enumerate(arms):
        for value in values:
            tuned = replace(tune.apply(arm, value), overrides=())
            folder = folder_of(number, arm, value)
            missing = [seed for seed in tuning_seeds(seeds) if not stored.has(tuned.name, seed)]
            trials += [new_trial(tuned, seed, folder / f"seed-{seed}") for seed in missing]
    return trials


def mean_loss(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return statistics.fmean(known) if len(known) == len(losses) else None


def best_value(arm: str, key: str, curve: Mapping[str, Sequence[float | None]], lower_is_better: bool) -> str:
    """The value with the best mean. Raises ConfigError if a run diverged at every value."""
    means = {value: mean for value, losses in curve.items() if (mean := mean_loss(losses)) is not None}
    if not means:
        raise ConfigError(f"--tune {key}: {arm} diverged at every value; try smaller values")
    return (min if lower_is_better else max)(means, key=lambda value: means[value])


def further_values(tune: Tune, arms: Sequence[Arm], values: Sequence[str], best: set[str]) -> list[str]:
    """The values beyond each edge of the range that is the best value of an arm and that has a valid value beyond it."""
    return [further for edge, further in edges(tune, arms, values).items() if edge in best]


def edges(tune: Tune, arms: Sequence[Arm], values: Sequence[str]) -> dict[str, str]:
    """The ends of the range with the next value beyond each; not those without an order, or at a limit of valid values."""
    found = {}
    for end, next_to_it in ((values[0], values[1]), (values[-1], values[-2])):
        further = next_value(values, end, next_to_it)
        with contextlib.suppress(ConfigError):
            if further is not None and further not in values:
                for arm in arms:
                    tune.apply(arm, further)
                found[end] = further
    return found


def next_value(values: Sequence[str], end: str, next_to_it: str) -> str | None:
    """The value beyond `end`, by the ratio of the grid if its ratios vary less than its steps, else by its step.

    None if the values are not numbers. Integers stay integers.
    """
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    last, before = float(end), float(next_to_it)
    step = 2 * last - before
    further = step
    if min(numbers) > 0:
        ratios = [math.log(high / low) for low, high in itertools.pairwise(numbers)]
        steps = [high - low for low, high in itertools.pairwise(numbers)]
        if max(ratios) / min(ratios) <= max(steps) / min(steps):
            further = last * last / before
    if all(value.lstrip("+-").isdigit() for value in values):
        return str(round(further))
    return f"{further:.6g}"


def add_tuned_arms(plan: Plan, tune: Tune, rows: list[TunedArm], lower_is_better: bool) -> Plan:
    """Add each arm at its best value and its claim against the tuned baseline. An arm whose default is best is reused.

    The claim has the noise of the choice of both values. A claim that is already in the plan gets it too, unless a best value
    was not bracketed: then it remains a claim about the defaults.
    """
    at_best, by_arm = {}, {row.arm: row for row in rows}
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
            pair = by_arm[claim.arm], by_arm[claim.against]
            outside = [f"{row.arm} ({row.best})" for row in pair if not row.interior]
            reason = ""
            if outside:
                reason = (
                    f"the best {tune.key} is not bracketed for {' and '.join(outside)}; give a wider range to --tune"
                )
            noise = find_method(plan.rules.method).tuning_noise(*(row.losses for row in pair), reason, lower_is_better)
            tuned = Claim(at_best[claim.arm], at_best[claim.against], "claim", noise)
            if tuned[:2] not in [other[:2] for other in claims]:
                claims.append(tuned)
            elif not reason:
                claims = [tuned if other[:2] == tuned[:2] else other for other in claims]
    if tune.only:
        own = [claim for claim in plan.claims if claim.arm in at_best and claim.against in at_best]
        pairs = {(at_best[claim.arm], at_best[claim.against]) for claim in own}
        claims = [claim for claim in claims if claim.role != "claim" or claim[:2] in pairs]
        judged = {end for claim in claims for end in claim[:2]}
        baseline = at_best[plan.arms[0].name]
        arms = sorted((arm for arm in arms if arm.name in judged), key=lambda arm: arm.name != baseline)
    return replace(plan, arms=tuple(arms), claims=tuple(claims))
