"""Held equal between the arms: tokens, parameters, operations or seconds, by hidden width or by the number of steps."""

import math
from dataclasses import dataclass, replace
from typing import Any

from partwise.comparison.plan import Arm, Plan, amounts
from partwise.comparison.request import Measure
from partwise.config import ConfigError
from partwise.train.settings import RunConfig

NEAR = 0.01
"""Arms count as equal within this share of the baseline."""


@dataclass(frozen=True)
class Match:
    """What was changed in an arm so that it takes as much as the baseline, and what difference remains."""

    arm: str
    key: str
    old: int
    new: int
    residual: float


def match_arms(plan: Plan, measure: Measure, rates: dict[str, float | None]) -> tuple[Plan, list[Match]]:
    """The plan with every claimed arm brought to the baseline's tokens, parameters, operations or seconds.

    Parameters are matched by the hidden width of ffn, the others by the number of steps, over which schedules stretch;
    seconds by `rates`, tokens per second of each arm in turn. Raises ConfigError where more than 1 % remains.
    """
    base = plan.arms[0]
    claimed = {claim.arm for claim in plan.claims if claim.role == "claim"}
    arms, found = [base], []
    for arm in plan.arms[1:]:
        if arm.name in claimed:
            arm, match = bring(arm, base, measure, rates)
            found.append(match)
        arms.append(arm)
    return replace(plan, arms=tuple(arms)), found


def bring(arm: Arm, base: Arm, measure: Measure, rates: dict[str, float | None]) -> tuple[Arm, Match]:
    wanted = amounts(base, rates)[measure]
    if wanted is None or amounts(arm, rates)[measure] is None:
        raise ConfigError(
            f"--match {measure}: {arm.name} or {base.name} diverged while it was timed, so it has no rate"
        )
    if measure == "parameters":
        return bring_width(arm, wanted)
    steps = arm.config.train.steps
    each = (amounts(arm, rates)[measure] or 0.0) / steps
    new = max(1, round(wanted / each))
    matched = replace(arm, config=with_steps(arm.config, new))
    return matched, checked(matched, Match(arm.name, "train.steps", steps, new, new * each / wanted - 1), measure)


def bring_width(arm: Arm, wanted: float) -> tuple[Arm, Match]:
    """By the hidden width, in which the number of parameters is linear."""
    ffn: Any = arm.config.model.ffn
    if not hasattr(ffn, "hidden"):
        raise ConfigError(f"--match parameters: ffn of {arm.name} has no single hidden width to change; leave it out")
    old = ffn.hidden or round(ffn.expansion * arm.config.model.d_model)

    def parameters(hidden: int) -> int:
        return with_hidden(arm.config, hidden).model.parameters()

    first = parameters(old)
    slope = parameters(old + 1) - first
    new = max(1, old + round((wanted - first) / slope)) if slope else old
    matched = replace(arm, config=with_hidden(arm.config, new)) if new != old else arm
    residual = matched.config.model.parameters() / wanted - 1
    return matched, checked(matched, Match(arm.name, "ffn.hidden", old, new, residual), "parameters")


def checked(arm: Arm, match: Match, measure: str) -> Match:
    if abs(match.residual) > NEAR:
        raise ConfigError(
            f"--match {measure}: the nearest {match.key}={match.new} of {arm.name} leaves {match.residual:+.1%}, more than "
            f"{NEAR:.0%}: choose a larger model or more steps, or another measure"
        )
    return match


def with_hidden(config: RunConfig, hidden: int) -> RunConfig:
    values = config.to_dict()
    return RunConfig.from_dict({**values, "ffn": {**values["ffn"], "hidden": hidden}})


def with_steps(config: RunConfig, steps: int) -> RunConfig:
    """As many evaluations as before, over another number of steps."""
    old = config.train
    every = old.eval_every and math.ceil(steps / math.ceil(old.steps / old.eval_every))
    return config.model_copy(update={"train": old.model_copy(update={"steps": steps, "eval_every": every})})
