"""Checks of A/A pairs that can fail, against scipy and enumeration."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from partwise.comparison.stats.null_pairs import mean_p, rejected_subsets, shift_power, why_no_noise


def test_p_and_subsets_agree_with_scipy() -> None:
    x = np.random.default_rng(0).normal(0.3, 1, 7)
    assert math.isclose(mean_p(x.tolist()), stats.ttest_1samp(x, 0).pvalue, rel_tol=1e-10)
    found = [stats.ttest_1samp(x[list(chosen)], 0).pvalue < 0.05 for chosen in itertools.combinations(range(7), 3)]
    rate, number, size = rejected_subsets(x.tolist())
    assert (number, size) == (35, 3) and math.isclose(rate, np.mean(found), abs_tol=1e-12)
    assert rejected_subsets(np.arange(40.0).tolist())[1:] == (10_000, 20)


def test_pairs_that_differ_on_average_fail() -> None:
    """A shift of 1.5 SDs, which relabelings cannot show: they reported 5.2% where the t test rejects 97%."""
    rng = np.random.default_rng(1)
    shifted = [why_no_noise(rng.normal(1.5, 1, 16).tolist()) for _ in range(50)]
    assert sum(map(bool, shifted)) > 45 and "--family" in str(shifted[0])
    assert rejected_subsets(rng.normal(1.5, 1, 16).tolist())[0] > 0.5


@pytest.mark.parametrize("n", [3, 4, 8, 16])
def test_sound_pairs_rarely_fail(n: int) -> None:
    rng = np.random.default_rng(2)
    failed = [why_no_noise(rng.normal(0, 1, n).tolist()) is not None for _ in range(1000)]
    assert np.mean(failed) <= stats.binom.isf(1e-5, 1000, 0.02) / 1000
    rates = [rejected_subsets(rng.normal(0, 1, n).tolist())[0] for _ in range(300)]
    assert abs(np.mean(rates) - 0.05) < 0.04


@pytest.mark.parametrize("n", [3, 4, 6, 8])
def test_the_power_to_find_a_shift_is_that_of_simulated_calibrations(n: int) -> None:
    """Three pairs find a shift of two SDs in 12%, four in 30%."""
    draws = 20_000
    pairs = np.random.default_rng(n).normal(2, 1, (draws, n))
    failed = stats.ttest_1samp(pairs, 0, axis=1).pvalue < 0.01
    if n == 8:  # both of the 256 sign flips with the largest mean: p = 0.0078, if all pairs have one sign
        failed |= (pairs > 0).all(axis=1)
        assert np.mean(failed) >= shift_power(n, 2.0) - 0.01
    else:
        assert shift_power(n, 2.0) == pytest.approx(np.mean(failed), abs=0.014)
