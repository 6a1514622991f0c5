"""Runs of several lengths: the difference at the end of each, and the compute saved at equal loss. Imports no torch."""

from collections.abc import Sequence

from partwise.comparison.results import ArmResult, ComputeSaved, Ratio, StepEffect
from partwise.comparison.stats.compute_saved import Ends, Saved, steps_saved
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.group_sequential import nominal_level
from partwise.comparison.stats.samples import mean, t_interval


def differences_at_ends(arm: ArmResult, baseline: ArmResult, effect: Effect) -> list[list[tuple[int, float]]]:
    """[steps, difference] of the runs of each length, for every seed of the effect."""
    pairs = [(dict(own), dict(other)) for own, other in paired_ends(arm, baseline, effect)]
    return [[(steps, own[steps] - other[steps]) for steps in own if steps in other] for own, other in pairs]


def change_over_horizons(arm: ArmResult, baseline: ArmResult, effect: Effect) -> StepEffect | None:
    """How the difference changes from the shortest runs to the longest, with its interval over seeds.

    None if the runs have one length, or one failed.
    """
    ends = differences_at_ends(arm, baseline, effect)
    lengths = [[steps for steps, _ in seed] for seed in ends]
    if not lengths or len(lengths[0]) < 2 or any(each != lengths[0] for each in lengths):
        return None
    changes = [seed[-1][1] - seed[0][1] for seed in ends]
    low, high = t_interval(changes, simultaneous_level(effect))
    return StepEffect(step=lengths[0][-1], mean=mean(changes), low=low, high=high)


def simultaneous_level(effect: Effect) -> float:
    """The level adjusted for the claims of the comparison by Bonferroni's method.

    Holm's, which the interval of the effect has, follows from the effects: it is not one of other quantities.
    """
    return nominal_level(effect.looks, effect.look, effect.total_alpha / effect.n_comparisons)


def compute_saved(arm: ArmResult, baseline: ArmResult, effect: Effect, is_loss: bool) -> ComputeSaved | None:
    """The compute saved by an arm; None if its runs have one length."""
    if not any(trial.horizons for trial in arm.trials):
        return None
    if not is_loss:
        return ComputeSaved(reason="the metric is not a loss")
    if not effect.paired or effect.verdict is None:
        return ComputeSaved(reason="there is no verdict")
    pairs = paired_ends(arm, baseline, effect)
    complete = len({len(ends) for pair in pairs for ends in pair}) == 1
    found = steps_saved(pairs, simultaneous_level(effect)) if complete else "a run failed"
    if isinstance(found, str):
        return ComputeSaved(reason=found, pairs=len(pairs))
    ratios = {"steps": ratio_of(found)}
    if arm.budget and baseline.budget:
        for measure in ("tokens", "flops", "seconds"):
            own, other = getattr(arm.budget, measure), getattr(baseline.budget, measure)
            if own and other and (converted := found.times(other / own)):
                ratios[measure] = ratio_of(converted)
    return ComputeSaved(ratios=ratios, pairs=found.n, censored_pairs=found.n_censored)


def ratio_of(saved: Saved) -> Ratio:
    return Ratio(ratio=saved.ratio, low=saved.low, high=saved.high)


def paired_ends(arm: ArmResult, baseline: ArmResult, effect: Effect) -> list[tuple[Ends, Ends]]:
    """[steps, value] of the runs of the arm and of the baseline, without those that failed, for every seed of the effect."""
    return [(ends_of(arm, seed), ends_of(baseline, seed)) for seed in effect.seeds]


def ends_of(arm: ArmResult, seed: int) -> Sequence[tuple[int, float]]:
    trial = arm.trial(seed)
    return [(steps, value) for steps, value in trial.horizons if value is not None] if trial else []
