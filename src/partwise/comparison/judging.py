"""Judge gathered results: the effect of every claim with its verdict, the controls and warnings. Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from partwise.comparison.horizons import (
    change_over_horizons,
    compute_saved,
    differences_at_ends,
    simultaneous_level,
)
from partwise.comparison.results import ArmResult, ClaimResult, ControlResult, Results, StepEffect, with_nan
from partwise.comparison.stats.adjusted import adjusted_mean
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.methods import find_method
from partwise.comparison.stats.power import minimum_detectable_effect
from partwise.comparison.stats.protocol import Claim, Rules, add_predictions, first_seeds
from partwise.comparison.stats.samples import mean, pooled_sd, t_interval
from partwise.comparison.stats.simulated_power import Design, detectable_effect
from partwise.comparison.stats.verdict_text import with_sentence

VALUES_CHANGED = "because the values that were judged first have changed since"

Curve = Sequence[tuple[int, float]]
"""[step, value] by step."""


def judge_results(
    results: Results,
    claims: Sequence[Claim],
    predictions: Mapping[str, tuple[str, str]],
    judged: int | None = None,
    control_power: float | None = None,
    first: Mapping[tuple[str, str], Effect] | None = None,
) -> Results:
    """The results with every claim judged by the rules of their protocol.

    `predictions` name the sums of two effects that a claim may be against. Without planned looks, `judged` is the number of
    seeds that the first verdict used: it stands, and the estimates from further seeds are exploratory. `control_power` is the
    power of the positive control if its effect was calibrated.

    `first` is given if the values that were judged first have changed since: the effects of the first verdict, as far as they
    are known, by arm and the arm that it is against. They stand, and the estimates from these values are exploratory.
    """
    rules = results.protocol.rules()
    values = add_predictions(with_nan(results.values_by_seed), results.arms[0].name, predictions, rules)
    exploratory: Sequence[Effect | None] = [None] * len(claims)
    if judged is not None and judged < len(results.seeds) // rules.baseline_runs and not rules.looks:
        exploratory = rules.explore(values, claims, predictions)
        values = first_seeds(values, judged, results.arms[0].name, rules.baseline_runs)
    if first is None:
        effects = rules.judge(values, claims, predictions)
    else:
        estimates = rules.explore(values, claims, predictions, VALUES_CHANGED)
        effects = [first.get(claim[:2], estimate) for claim, estimate in zip(claims, estimates, strict=True)]
        exploratory = [
            estimate if claim[:2] in first else None for claim, estimate in zip(claims, estimates, strict=True)
        ]
    arms = tuple(mark_failed(arm, rules) for arm in results.arms)
    judged_arms = arms if first is None else ()  # these curves are not those of the effects
    found = tuple(
        claim_result(claim, effect, further, judged_arms, rules, results.metric_is_loss)
        for claim, effect, further in zip(claims, effects, exploratory, strict=True)
    )
    return results.model_copy(
        update={
            "look": max(effect.look for effect in effects),
            "arms": arms,
            "claims": found,
            "minimum_detectable_effect": pooled_detectable(
                [effect for claim, effect in zip(claims, effects, strict=True) if claim.role == "claim"], rules
            ),
            "controls": control_results(found, control_power),
            "warnings": find_method(rules.method).warnings(effects),
        }
    )


def mark_failed(arm: ArmResult, rules: Rules) -> ArmResult:
    """The arm with `failed` set in its trials."""
    trials = []
    for trial in arm.trials:
        value = math.nan if trial.value is None else trial.value
        trials.append(trial.model_copy(update={"failed": has_failed(value, rules.failure, rules.lower_is_better)}))
    return arm.model_copy(update={"trials": tuple(trials)})


def claim_result(
    claim: Claim, effect: Effect, exploratory: Effect | None, arms: Sequence[ArmResult], rules: Rules, curves: bool
) -> ClaimResult:
    """An effect, adjusted for stopping, and the differences over training if the `curves` are in the metric."""
    effect = with_sentence(effect, adjusted_mean=adjusted_mean(effect, rules.method))
    by_name = {arm.name: arm for arm in arms}
    differences = []
    if claim.against in by_name and curves:
        pairs = [(validation_curve(by_name[name], effect.seeds)) for name in (claim.arm, claim.against)]
        differences = [difference_over_training(curve, base) for curve, base in zip(*pairs, strict=True)]
    horizons: dict[str, Any] = {}
    if claim.against in by_name and claim.arm in by_name:
        ends = by_name[claim.arm], by_name[claim.against]
        horizons["effect_over_horizons"] = tuple(effect_over_training(differences_at_ends(*ends, effect), effect))
        horizons["change_over_horizons"] = change_over_horizons(*ends, effect)
        horizons["compute_saved"] = compute_saved(*ends, effect, curves)
    return ClaimResult(
        role=claim.role,
        effect=effect,
        exploratory=exploratory,
        minimum_detectable_effect=pair_detectable(rules, effect),
        effect_over_training=tuple(effect_over_training(differences, effect)),
        differences_over_training=tuple(map(tuple, differences)),
        **horizons,
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


def effect_over_training(differences: Sequence[Curve], effect: Effect) -> list[StepEffect]:
    """The mean difference at every evaluation with its interval: descriptive, not for choosing a step.

    The last interval has the level of the effect's; the others are adjusted for all claims by Bonferroni's method.
    """
    rows = []
    steps = sorted({step for seed in differences for step, _ in seed})
    for step in steps:
        values = [value for seed in differences for at, value in seed if at == step]
        if len(values) == len(differences):
            level = effect.nominal_alpha if step == steps[-1] else simultaneous_level(effect)
            low, high = t_interval(values, level)
            rows.append(StepEffect(step=step, mean=mean(values), low=low, high=high))
    return rows


def pair_detectable(rules: Rules, effect: Effect) -> float | None:
    """The true difference that the planned looks detect with 80% power, given the observed SD of the pairs."""
    if effect.sd_difference is None or effect.n < 2:
        return None
    return minimum_detectable(rules, effect.sd_difference, effect.n, effect.alpha)


def minimum_detectable(rules: Rules, sd_difference: float, n: int, alpha: float) -> float:
    """The minimum detectable effect at level alpha, over all planned looks or with `n` pairs."""
    if rules.looks and sd_difference:
        return detectable_effect(Design(rules.looks, alpha=alpha, method=rules.method), sd_difference)
    return minimum_detectable_effect(sd_difference / math.sqrt(2), n, alpha=alpha)  # from the SD of one run


def pooled_detectable(effects: Sequence[Effect], rules: Rules) -> float | None:
    """The smallest effect that these seeds detect with 80% power, given their observed SD over all claims."""
    judged = [effect for effect in effects if effect.sd_difference is not None]
    pooled = pooled_sd([[x for x in effect.differences if x is not None] for effect in judged])
    if pooled is None:
        return None
    n, compared = max(effect.n for effect in judged), max(effect.n_comparisons for effect in judged)
    return minimum_detectable(rules, pooled, n, rules.alpha / compared)


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
