"""Match the training tokens, parameters, FLOPs or seconds of the arms, by the FFN's hidden width or the number of steps."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from partwise.ablation.run_plan import RunArm, RunPlan, training_budget
from partwise.comparison.measures import Measure, check_residual
from partwise.comparison.results import Match, Matching
from partwise.config import ConfigError
from partwise.train.config import RunConfig


def match_arms(plan: RunPlan, measure: Measure, rates: Mapping[str, float | None]) -> tuple[RunPlan, Matching]:
    """The plan with every claimed arm matched to the baseline's tokens, parameters, FLOPs or seconds.

    Parameters are matched by the hidden width of the FFN, the others by the number of steps, to which schedules rescale.
    Seconds follow from `rates`, the tokens per second of each arm. Raises ConfigError if arms still differ by over 1%.
    """
    base = plan.arms[0]
    claimed = {claim.arm for claim in plan.claims if claim.role == "claim"}
    arms, matches = [base], []
    for arm in plan.arms[1:]:
        if arm.name in claimed:
            arm, match = match_arm(arm, base, measure, rates)
            matches.append(match)
        arms.append(arm)
    return replace(plan, arms=tuple(arms)), Matching(measure=measure, arms=tuple(matches))


def match_arm(arm: RunArm, base: RunArm, measure: Measure, rates: Mapping[str, float | None]) -> tuple[RunArm, Match]:
    target, own = (getattr(training_budget(each, rates), measure) for each in (base, arm))
    if target is None or own is None:
        raise ConfigError(
            f"--match {measure}: {arm.name} or {base.name} diverged during timing, so its throughput is unknown"
        )
    if measure == "parameters":
        return match_hidden_width(arm, target)
    steps = arm.config.train.steps
    per_step = own / steps
    new = max(1, round(target / per_step))
    matched = replace(arm, config=with_steps(arm.config, new))
    match = Match(arm=arm.name, key="train.steps", old=steps, new=new, residual=new * per_step / target - 1)
    return matched, checked(match, measure)


def match_hidden_width(arm: RunArm, target: float) -> tuple[RunArm, Match]:
    """Match the number of parameters, which is linear in the FFN's hidden width."""
    ffn: Any = arm.config.model.ffn
    if not hasattr(ffn, "hidden"):
        raise ConfigError(f"--match parameters: the ffn of {arm.name} has no single hidden width; use another measure")
    old = ffn.hidden or round(ffn.expansion * arm.config.model.d_model)

    def parameters(hidden: int) -> int:
        return with_hidden(arm.config, hidden).model.parameters()

    first = parameters(old)
    slope = parameters(old + 1) - first
    new = max(1, old + round((target - first) / slope)) if slope else old
    matched = replace(arm, config=with_hidden(arm.config, new)) if new != old else arm
    residual = matched.config.model.parameters() / target - 1
    match = Match(arm=arm.name, key="ffn.hidden", old=old, new=new, residual=residual)
    return matched, checked(match, "parameters")


def checked(match: Match, measure: Measure) -> Match:
    remedy = "a larger model, more steps or another measure"
    check_residual(measure, match.arm, f"{match.key}={match.new}", match.residual, remedy)
    return match


def with_hidden(config: RunConfig, hidden: int) -> RunConfig:
    values = config.to_dict()
    return RunConfig.from_dict({**values, "ffn": {**values["ffn"], "hidden": hidden}})


def with_steps(config: RunConfig, steps: int) -> RunConfig:
    """The configuration with another number of steps and as many evaluations as before."""
    old = config.train
    every = old.eval_every and math.ceil(steps / math.ceil(old.steps / old.eval_every))
    return config.model_copy(update={"train": old.model_copy(update={"steps": steps, "eval_every": every})})
