"""The estimate of a claim that interim looks may have stopped, adjusted for stopping, and the seeds that replicate it."""

import math

import numpy as np

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.noise import Noise
from partwise.comparison.stats.power import seeds_needed
from partwise.comparison.stats.simulated_power import POWER, Design, one_real_claim, stopped_means

MIN_REPLICATION_SEEDS, MAX_REPLICATION_SEEDS = 4, 64


def adjusted_mean(effect: Effect, method: int) -> float | None:
    """The median-unbiased estimate of a difference under its planned looks; None with one look or without an SD.

    A claim that stops at an early look does so with a large estimate, so the mean at the stop is too large on average. This
    is the true difference with which half of all comparisons stop at a mean as large as the observed one (Emerson &
    Fleming 1990), by simulation with the observed SD.
    """
    if len(effect.looks) < 2 or effect.mean is None or not effect.sd_difference:
        return None
    sd = effect.sd_difference
    family = effect.n_comparisons
    design = Design(effect.looks, 1, effect.margin, effect.alpha, method=method, family=family)
    observed = effect.mean / sd
    low, high = observed - 4.0, observed + 4.0
    for _ in range(14):
        middle = (low + high) / 2
        above = float(np.mean(stopped_means(design, middle, effect.margin / sd) >= observed))
        low, high = (low, middle) if above >= 0.5 else (middle, high)
    return (low + high) / 2 * sd


def replication_seeds(effect: Effect, alpha: float, method: int) -> tuple[int, str]:
    """The seeds of a replication with 80% power for the adjusted estimate at the upper limit of the SD, and the reason.

    At least 4 and as many as the last planned look, since the estimate of a claim that stopped early is too large even when
    adjusted, which holds over all comparisons; at most 64, if no more were planned.
    """
    least = max((MIN_REPLICATION_SEEDS, *effect.looks))
    most = max(MAX_REPLICATION_SEEDS, least)
    if effect.failed:
        seeds = min(max(least, effect.n), most)
        return seeds, f"{seeds} seeds: the verdict is about failure rates; their power is not estimated"
    found = effect.mean if effect.adjusted_mean is None else effect.adjusted_mean
    if not found or not effect.sd_difference:
        return least, f"{least} seeds, the fewest, as the differences do not vary"
    noise = Noise(effect.sd_difference, effect.n - 1, "")
    what = "" if effect.adjusted_mean is None else ", adjusted for stopping,"
    why = f"an effect of {abs(found):.4g}{what} at an SD of {noise.upper_sd:.4g}, its 80% upper limit"
    fewest = seeds_needed(found, noise.upper_sd / math.sqrt(2), alpha=alpha)  # if no arms were ever called equivalent
    for n in range(min(max(least, fewest), most), most + 1):
        design = Design((n,), 1, effect.margin, alpha, method=method)
        rates = one_real_claim(design, found, noise.upper_sd)
        if rates.better >= POWER:
            planned = ", as many as were planned" if n == least > MIN_REPLICATION_SEEDS else ""
            break
    else:
        planned = ", the most"
    half = one_real_claim(design, found / 2, noise.upper_sd).better
    return n, (
        f"{n} seeds{planned}: {'' if rates.better >= POWER else 'only '}{100 * rates.better:.0f}% power for {why}, and "
        f"{100 * half:.0f}% if the effect is half of that"
    )
