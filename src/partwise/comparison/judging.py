"""Judge gathered results: the effect of every claim with its verdict, the controls and warnings. Imports no torch."""

import math
from collections.abc import Mapping, Sequence

from partwise.comparison.results import ArmResult, ClaimResult, ControlResult, Results, StepEffect
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.intervals import grubbs, judge, look_alpha, pooled_sd
from partwise.comparison.stats.power import minimum_detectable_effect, minimum_detectable_effect_over_looks
from partwise.comparison.stats.protocol import Claim, Rules, add_predictions

Curve = Sequence[tuple[int, float]]
"""[step, value] by step."""


def judge_results(
    results: Results,
    rules: Rules,
    claims: Sequence[Claim],
    predictions: Mapping[str, tuple[str, str]],
    look: int = 1,
    control_power: float | None = None,
) -> Results:
    """The results with every claim judged.

    `predictions` name the sums of two effects that a claim may be against, `look` is the number of this look if none are
    planned, and `control_power` is the power of the positive control if its effect was calibrated.
    """
    values = {
        arm.name: {trial.seed: math.nan if trial.value is None else trial.value for trial in arm.trials}
        for arm in results.arms
    }
    effects = rules.judge(add_predictions(values, results.arms[0].name, predictions), claims, look)
    judged = tuple(
        claim_result(claim, effect, results.arms, rules) for claim, effect in zip(claims, effects, strict=True)
    )
    return results.model_copy(
        update={
            "look": max(effect.look for effect in effects),
            "alpha_spent": max(effect.alpha_spent for effect in effects),
            "claims": judged,
            "minimum_detectable_effect": pooled_detectable(effects, rules, len(results.seeds), look),
            "controls": control_results(judged, control_power),
            "warnings": outlier_warnings(effects),
        }
    )


def claim_result(claim: Claim, effect: Effect, arms: Sequence[ArmResult], rules: Rules) -> ClaimResult:
    """An effect, and the differences over training."""
    by_name = {arm.name: arm for arm in arms}
    differences = []
    if claim.against in by_name and rules.lower_is_better:  # the curves are losses
        pairs = [(validation_curve(by_name[name], effect.seeds)) for name in (claim.arm, claim.against)]
        differences = [difference_over_training(curve, base) for curve, base in zip(*pairs, strict=True)]
    return ClaimResult(
        role=claim.role,
        effect=effect,
        minimum_detectable_effect=pair_detectable(rules, effect),
        effect_over_training=tuple(effect_over_training(differences, effect, rules.alpha)),
        differences_over_training=tuple(map(tuple, differences)),
    )


def validation_curve(arm: ArmResult, seeds: Sequence[int]) -> list[Curve]:
    """The validation losses of each seed."""
    trials = {trial.seed: trial for trial in arm.trials}
    return [[(step, loss) for step, loss, _ in trials[seed].evaluations] for seed in seeds]


def difference_over_training(curve: Curve, baseline: Curve) -> list[tuple[int, float]]:
    """[step of the baseline, difference] at equal fractions of training, that is at equal steps unless steps were matched."""
    if not curve or not baseline:
        return []
    last, baseline_last = curve[-1][0], baseline[-1][0]
    differences = []
    for step, loss in baseline:
        nearest = min(curve, key=lambda point: abs(point[0] / last - step / baseline_last))
        if abs(nearest[0] / last - step / baseline_last) <= 0.01:
            differences.append((step, nearest[1] - loss))
    return differences


def effect_over_training(differences: Sequence[Curve], effect: Effect, alpha: float) -> list[StepEffect]:
    """The mean difference at every evaluation with the interval it would have had: descriptive, not for choosing a step."""
    rows = []
    steps = sorted({step for seed in differences for step, _ in seed})
    for step in steps:
        values = {number: value for number, seed in enumerate(differences) for at, value in seed if at == step}
        if len(values) == len(differences):
            zero = dict.fromkeys(values, 0.0)
            judged = judge("", "", values, zero, alpha=alpha, look=effect.look, looks=effect.looks)
            rows.append(StepEffect(step=step, mean=judged.mean, low=judged.low, high=judged.high))
    return rows


def pair_detectable(rules: Rules, effect: Effect) -> float | None:
    """The true difference that the planned looks detect with 80% power, given the observed SD of the pairs."""
    if effect.sd_difference is None or effect.n < 2:
        return None
    return minimum_detectable(rules, effect.interval_sd or effect.sd_difference, effect.n, effect.alpha)


def minimum_detectable(rules: Rules, sd_difference: float, n: int, alpha: float) -> float:
    """The minimum detectable effect over all planned looks, or with `n` pairs at level alpha."""
    sd = sd_difference / math.sqrt(2)  # the SD of one run, which the power functions expect
    if rules.looks:
        return minimum_detectable_effect_over_looks(sd, rules.looks, alpha=rules.alpha)
    return minimum_detectable_effect(sd, n, alpha=alpha)


def pooled_detectable(effects: Sequence[Effect], rules: Rules, seeds: int, look: int) -> float | None:
    """The smallest effect that these seeds detect with 80% power, given their observed SD over all claims."""
    judged = [[x for x in effect.differences if x is not None] for effect in effects if effect.verdict]
    pooled = pooled_sd([differences for differences in judged if len(differences) > 1])
    if pooled is None or seeds < 2:
        return None
    return minimum_detectable(rules, pooled, seeds, look_alpha(look, rules.alpha))


def outlier_warnings(effects: Sequence[Effect]) -> tuple[str, ...]:
    """Warnings about claims with an outlying pair, where the t interval may undercover."""
    messages = []
    for effect in effects:
        differences = [x for x in effect.differences if x is not None]
        p = grubbs(differences) if len(differences) == len(effect.differences) else None
        if p is not None and p < 0.01:
            distances = [abs(value - (effect.mean or 0.0)) for value in differences]
            outlier = effect.seeds[distances.index(max(distances))]
            messages.append(
                f"seed {outlier} of {effect.arm} is an outlier among the pairs (Grubbs's test, p = {p:.2g}), so the interval "
                "may cover less than stated: inspect that run and add seeds."
            )
    return tuple(messages)


def control_results(claims: Sequence[ClaimResult], power: float | None) -> tuple[ControlResult, ...]:
    """Whether each control passed: no difference for a negative control, a difference for a positive one."""
    results = []
    for claim in claims:
        verdict, positive = claim.effect.verdict, claim.role == "positive"
        if claim.role != "claim":
            passed = None if verdict is None else (verdict in ("better", "worse")) == positive
            results.append(
                ControlResult(arm=claim.effect.arm, role=claim.role, passed=passed, power=power if positive else None)
            )
    return tuple(results)
