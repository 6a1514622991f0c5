"""False verdicts of tuned arms, by simulating quadratic tuning curves of identical arms."""

import math

import numpy as np
import pytest
from scipy import stats

from partwise.comparison.stats.tuning_noise import TuningNoise, tuning_noise


def false_verdicts(
    values: int, pairs: int, noise: float, optimum: float, *, unstable: float = 1.0, draws: int = 800
) -> tuple[float, float]:
    """The fraction of identical arms whose 95% interval excludes 0, with tuning's noise and without.

    The SD of the value above the middle one is `unstable` times that of the others.
    """
    rng = np.random.default_rng([values, pairs, int(100 * noise)])
    truth = (np.arange(values) - (values - 1) / 2 - optimum) ** 2  # over log lr, in steps of the grid
    sd = np.full(values, noise)
    sd[values // 2 + 1] *= unstable
    with_noise = without = 0
    for _ in range(draws):
        losses = (
            truth[:, None] + sd[:, None] * rng.standard_normal((2, values, 4)) + noise * rng.standard_normal((2, 1, 4))
        )
        arm, baseline = losses.mean(-1).argmin(-1)
        d = truth[arm] - truth[baseline] + math.hypot(sd[arm], sd[baseline]) * rng.standard_normal(pairs)
        error, df = d.std(ddof=1) / math.sqrt(pairs), pairs - 1.0
        without += abs(d.mean()) > stats.t.ppf(0.975, df) * error
        error, df = tuning_noise(losses[0].tolist(), losses[1].tolist()).add_to(error, df)
        with_noise += abs(d.mean()) > stats.t.ppf(0.975, df) * error
    return with_noise / draws, without / draws


@pytest.mark.parametrize("noise", [0.1, 0.7, 1.0, 1.5, 4.0, 20.0])
@pytest.mark.parametrize(("values", "pairs", "optimum"), [(3, 4, 0.0), (3, 16, 0.0), (5, 8, 0.25), (5, 16, 0.5)])
def test_identical_arms_rarely_differ_at_their_best(values: int, pairs: int, optimum: float, noise: float) -> None:
    rate, _ = false_verdicts(values, pairs, noise, optimum)
    assert rate <= stats.binom.isf(1e-4, 800, 0.05) / 800


@pytest.mark.parametrize("noise", [0.1, 0.4, 1.0, 4.0])
@pytest.mark.parametrize(("values", "pairs", "optimum"), [(5, 8, 0.25), (6, 8, 0.5)])
def test_identical_arms_rarely_differ_if_one_value_is_unstable(
    values: int, pairs: int, optimum: float, noise: float
) -> None:
    rate, _ = false_verdicts(values, pairs, noise, optimum, unstable=6.0)
    assert rate <= stats.binom.isf(1e-4, 800, 0.05) / 800


def test_a_metric_of_which_more_is_better_has_the_same_noise() -> None:
    curve = np.random.default_rng(2).normal([[0.2], [0.0], [0.1]], 0.1, (3, 4))
    losses = tuning_noise(curve.tolist(), curve.tolist())
    assert losses.standard_error > 0
    assert tuning_noise((-curve).tolist(), (-curve).tolist(), lower_is_better=False) == losses


def test_pairs_that_agree_have_the_degrees_of_freedom_of_tuning() -> None:
    noise = TuningNoise(0.01, 3)
    assert noise.add_to(0.0, 15) == (0.01, 3) and noise.add_to(1e-9, 15) == pytest.approx((0.01, 3))


def test_a_value_far_above_the_best_adds_nothing_however_unstable() -> None:
    rng = np.random.default_rng(1)
    curve = np.array([[0.5], [0.0], [0.5]]) + 0.01 * rng.standard_normal((3, 4))
    unstable = np.vstack([curve, 40.0 + rng.standard_normal(4)])
    assert tuning_noise(curve.tolist(), curve.tolist()).standard_error == 0
    assert tuning_noise(unstable.tolist(), curve.tolist()).standard_error == 0


def test_the_redrawn_means_have_the_covariance_of_the_values() -> None:
    """Of two equal means the first is chosen; of their difference x ~ N(0, s^2 / n), E[max(0, x)^2] is half the variance."""
    difference = np.array([3.0, -1.0, -2.5, 0.5])
    seeds = np.array([5.0, 1.0, 2.0, 9.0])  # an effect of each seed on both values
    losses = np.vstack([seeds, seeds + difference])
    expected = math.sqrt(2 * difference.var(ddof=1) / 4 / 2)
    assert math.isclose(tuning_noise(losses.tolist(), [[1.0] * 4]).standard_error, expected, rel_tol=0.05)


def test_ignoring_the_noise_of_tuning_fails_this_check() -> None:
    assert false_verdicts(3, 16, 1.0, 0.0)[1] > 0.12


def test_a_clear_minimum_adds_nothing() -> None:
    curve = [[1.0, 1.01, 0.99, 1.0], [0.5, 0.51, 0.5, 0.49], [1.2, 1.2, 1.21, 1.2]]
    assert tuning_noise(curve, curve).standard_error == 0
    assert TuningNoise(0.0, 3).add_to(0.1, 7) == (0.1, 7)
    failed = [*curve, [None, 0.1, 0.1, 0.1]]
    assert tuning_noise(failed, curve).standard_error == 0, "a value with a failed run is no candidate"


def test_degrees_of_freedom_are_satterthwaites() -> None:
    error, df = TuningNoise(3.0, 3).add_to(4.0, 9)
    assert math.isclose(error, 5) and math.isclose(df, 25**2 / (9**2 / 3 + 16**2 / 9))


def test_a_seed_that_shifts_all_values_does_not_change_the_noise() -> None:
    rng = np.random.default_rng(0)
    losses = rng.standard_normal((3, 4))
    shifted = losses + 100 * rng.standard_normal(4)
    shifted += losses.mean() - shifted.mean()
    a, b = (tuning_noise(x.tolist(), x.tolist()).standard_error for x in (losses, shifted))
    assert a > 0 and math.isclose(a, b, rel_tol=1e-9)
