"""Checks of A/A pairs, which compare equal arms: tests that can fail, unlike relabelings, which center any data at 0."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from partwise.comparison.stats.power import paired_t_power
from partwise.comparison.stats.samples import sd, sign_flip_p, t_sf

CALIBRATION_ALPHA = 0.01
"""A calibration fails if a test of its mean has a smaller p: in 1 to 2% of sound ones."""

MAX_SUBSETS = 10_000


def mean_p(differences: Sequence[float]) -> float:
    """The two-sided p of the t test of a mean of 0; 1 if the differences do not vary."""
    n, spread = len(differences), sd(differences)
    if not spread:
        return 1.0
    return 2 * t_sf(n - 1.0, abs(math.fsum(differences)) / math.sqrt(n) / spread)


def flip_p(differences: Sequence[float]) -> float:
    """The two-sided p of the sign-flip test of a mean of 0; 1 if the test is not possible."""
    p = sign_flip_p(differences)
    return 1.0 if p is None else p


def rejected_subsets(differences: Sequence[float], alpha: float = 0.05) -> tuple[float, int, int]:
    """The fraction of subsets of pairs that a t test at `alpha` rejects, their number, and their size.

    Subsets have half of the pairs, at least 3; all are tried, or 10,000 drawn with a fixed seed. For sound pairs the
    expected fraction is `alpha`, but it varies widely from one calibration to the next, as subsets overlap.
    """
    x, n = np.array(differences), len(differences)
    size = max(3, n // 2)
    if math.comb(n, size) <= MAX_SUBSETS:
        chosen = np.array(list(itertools.combinations(range(n), size)))
    else:
        chosen = np.random.default_rng(0).permuted(np.tile(np.arange(n), (MAX_SUBSETS, 1)), axis=1)[:, :size]
    subsets = x[chosen]
    error = subsets.std(axis=1, ddof=1) / math.sqrt(size)
    limit = -float(special.stdtrit(size - 1, alpha / 2))
    return float(np.mean(np.abs(subsets.mean(axis=1)) > limit * error)), len(chosen), size


def shift_power(n: int, shift: float) -> float:
    """The probability that `n` pairs whose mean is off by `shift` of their SDs fail; at least that of their t test.

    Exact up to 7 pairs: sign flips then have no p below `CALIBRATION_ALPHA`. With more pairs, sign flips find a little more.
    """
    return paired_t_power(shift * math.sqrt(n), n, CALIBRATION_ALPHA)


def why_no_noise(differences: Sequence[float]) -> str | None:
    """Why these A/A pairs are no measure of noise, in one line with the remedy; None if their mean is compatible with 0."""
    p_t, p_flip = mean_p(differences), flip_p(differences)
    if min(p_t, p_flip) >= CALIBRATION_ALPHA:
        return None
    mean = math.fsum(differences) / len(differences)
    return (
        f"the A/A pairs differ by {mean:+.4g} on average (t test p = {p_t:.2g}, sign-flip p = {p_flip:.2g}), so "
        "re-initialization changes the result itself and plans will not use them: choose another --family, or calibrate "
        "again with more --seeds"
    )
