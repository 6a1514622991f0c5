"""Arms are matched by parameters, tokens, FLOPs or seconds, and compared at equal fractions of training."""

import math
from pathlib import Path
from typing import Any

import pytest

from comparisons import SETTINGS, TINY
from partwise.ablation.matching import match_arms
from partwise.ablation.request import Request
from partwise.ablation.run_comparison import make_comparison
from partwise.ablation.run_plan import training_budget
from partwise.comparison.experiment import Comparison
from partwise.comparison.judging import difference_over_training
from partwise.config import ConfigError


def arms_of(*change: str, **values: Any) -> Comparison:
    return make_comparison(Request.from_dict({"preset": "mingpt", "change": list(change), **SETTINGS, **values}))


@pytest.mark.parametrize(
    "change", [["ffn=swiglu", "ffn.expansion=4"], ["norm=rmsnorm"], ["tie_embeddings=true", "head_bias=false"]]
)
def test_parameters_are_matched_by_hidden_width(here: Path, change: list[str]) -> None:
    plan = arms_of(*change, common=[*TINY, "d_model=32"]).plan
    matched, matching = match_arms(plan, "parameters", {})
    (found,) = matching.arms
    base, arm = (each.config.model.parameters() for each in matched.arms)
    assert abs(arm / base - 1) <= 0.01 and math.isclose(found.residual, arm / base - 1, abs_tol=1e-12)
    wider = {**matched.arms[1].config.to_dict()["ffn"]}
    assert wider["hidden"] == found.new or found.new == found.old


@pytest.mark.parametrize("measure", ["flops", "seconds", "tokens"])
def test_budgets_are_matched_by_steps_and_schedules_stretch(here: Path, measure: Any) -> None:
    common = [*TINY, "train.steps=400", "train.eval_every=100", "schedule=cosine"]
    plan = arms_of("ffn=swiglu", "ffn.expansion=4", common=common).plan
    rates: dict[str, float | None] = {"mingpt": 1000.0, "ffn=swiglu ffn.expansion=4": 900.0}
    matched, matching = match_arms(plan, measure, rates)
    (found,) = matching.arms
    used, baseline = (getattr(training_budget(arm, rates), measure) for arm in reversed(matched.arms))
    assert used is not None and baseline is not None and abs(used / baseline - 1) <= 0.01
    steps = matched.arms[1].config.train.steps
    assert steps == {"tokens": 400, "seconds": 360}.get(measure, steps) and found.new == steps
    assert math.ceil(steps / (matched.arms[1].config.train.eval_every or 1)) == 4, "as many evaluations as the baseline"
    schedule = matched.arms[1].config.schedule
    assert math.isclose(schedule.factor(steps - 1, steps), 0.1, rel_tol=1e-3), "it ends where the baseline's ends"


def test_unmatchable_arms_are_refused(here: Path) -> None:
    plan = arms_of("ffn=swiglu", "ffn.expansion=4").plan
    with pytest.raises(ConfigError, match="throughput is unknown"):
        match_arms(plan, "seconds", {"mingpt": None})
    with pytest.raises(ConfigError, match=r"differs by [-+]\d.*more than 1%"):
        match_arms(plan, "flops", {})  # 12 steps cannot be cut that finely


def test_an_arm_with_frozen_parameters_trains_longer_at_equal_flops(here: Path) -> None:
    common = [*TINY, "train.steps=400", "n_layers=2", "positions=rope"]
    matched, matching = match_arms(arms_of("train.freeze=embed,blocks.0", common=common).plan, "flops", {})
    base, arm = (each.config for each in matched.arms)
    assert matching.arms[0].new == arm.train.steps > base.train.steps == 400
    # the frozen first layer has a forward pass, a third of its FLOPs
    assert arm.flops_per_token() < 0.75 * base.flops_per_token()
    assert abs(arm.train.steps * arm.flops_per_step() / (400 * base.flops_per_step()) - 1) < 0.01


def test_curves_of_matched_arms_are_compared_at_equal_fractions_of_training() -> None:
    curve = [(step, 2.0 - step / 1000) for step in (*range(9, 850, 9), 850)]
    baseline = [(step, 2.0) for step in range(10, 1001, 10)]
    differences = difference_over_training(curve, baseline)
    assert differences[-1] == (1000, curve[-1][1] - 2.0), "the last point with the last"
    assert all(abs(2.0 + difference - (2.0 - 0.85 * step / 1000)) < 0.01 for step, difference in differences)
