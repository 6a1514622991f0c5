"""The upper limit of an SD against scipy, and the average power of plans made from pilot pairs."""

import math

import numpy as np
import pytest
from scipy import stats

from partwise.comparison.stats.noise import Noise, given_noise, pooled_noise
from partwise.comparison.stats.simulated_power import Design, seeds_for_effect
from partwise.config import ConfigError


def test_the_upper_limit_exceeds_the_true_sd_four_times_in_five() -> None:
    rng = np.random.default_rng(0)
    pilots = rng.normal(0, 0.01, (4000, 6))
    above = np.mean([(pooled_noise([row.tolist()], "") or Noise(1, 1, "")).upper_sd > 0.01 for row in pilots])
    assert abs(above - 0.8) < 0.03
    noise = Noise(0.01, 5, "")
    assert math.isclose(noise.upper_sd, 0.01 * math.sqrt(5 / stats.chi2.ppf(0.2, 5)), rel_tol=1e-12)
    assert given_noise(0.01).upper_sd == 0.01


@pytest.mark.parametrize("pilot", [4, 8, 16])
def test_plans_from_pilot_pairs_have_the_promised_power_on_average(pilot: int) -> None:
    """Plans for 80% from the pilot's SD itself have 57%, 68% and 74% on average."""
    effect, sd, strata = 0.008, 0.01, 20
    powers = []
    for p in (np.arange(strata) + 0.5) / strata:
        noise = Noise(sd * math.sqrt(stats.chi2.ppf(p, pilot - 1) / (pilot - 1)), pilot - 1, "")
        n = seeds_for_effect(effect, noise.upper_sd, Design((2,)))
        shift = effect / sd * math.sqrt(n)
        critical = stats.t.ppf(0.975, n - 1)
        powers.append(stats.nct.sf(critical, n - 1, shift))
    assert np.mean(powers) >= 0.8


def test_pooled_variance_is_the_mean_and_its_degrees_of_freedom_hold() -> None:
    """Three arms share a baseline: the variance of the pooled variance is 2 sd^4 / df."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((20_000, 4, 6))
    d = x[:, 1:] - x[:, :1]
    variances = d.var(-1, ddof=1).mean(-1)
    noise = pooled_noise(d[0].tolist(), "pairs")
    assert noise is not None and math.isclose(noise.sd**2, variances[0], rel_tol=1e-12)
    assert noise.df == pytest.approx(2 * variances.mean() ** 2 / variances.var(), rel=0.05)


def test_constant_or_single_differences_give_no_noise() -> None:
    assert pooled_noise([[0.1, 0.1, 0.1], [0.2]], "") is None and pooled_noise([], "") is None
    with pytest.raises(ConfigError, match="sd=0"):
        given_noise(0.0)
