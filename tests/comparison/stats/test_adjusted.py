"""The estimate adjusted for stopping, and the size of a replication, by simulation."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from partwise.comparison.stats.adjusted import adjusted_mean, replication_seeds
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.methods import newest_method
from partwise.comparison.stats.protocol import Claim, Rules

LOOKS = (8, 16, 32)
NEWEST = newest_method()


def judged(rng: np.random.Generator, effect: float, looks: tuple[int, ...] = LOOKS) -> Effect:
    runs = rng.normal(0, math.sqrt(0.5), (2, looks[-1]))
    runs[1] += effect
    values = {name: dict(enumerate(row.tolist())) for name, row in zip("ab", runs, strict=True)}
    (found,) = Rules(margin=0.3, looks=looks).judge(values, [Claim("b", "a")])
    return found


@pytest.mark.parametrize("effect", [0.4, 0.6, 1.0])
def test_half_of_the_adjusted_estimates_are_too_large(effect: float) -> None:
    """Of all comparisons, wherever they stop. More of the raw means are, and their median is too large."""
    rng, draws = np.random.default_rng(0), 200
    effects = [judged(rng, effect) for _ in range(draws)]
    adjusted = np.array([adjusted_mean(found, NEWEST) for found in effects], float)
    raw = np.array([found.mean for found in effects], float)
    assert abs(np.mean(adjusted > effect) - 0.5) < 4 * 0.5 / math.sqrt(draws)
    assert abs(np.median(adjusted) / effect - 1) < 0.08
    assert adjusted.mean() < raw.mean()


def test_a_stop_at_the_first_look_shrinks_the_estimate() -> None:
    rng = np.random.default_rng(1)
    effects = [judged(rng, 1.0) for _ in range(60)]
    early = [found for found in effects if found.look == 1 and found.verdict == "worse"]
    assert len(early) > 10
    for found in early:
        adjusted = adjusted_mean(found, NEWEST)
        assert adjusted is not None and found.mean is not None and adjusted < found.mean + 1e-3
    assert (
        np.mean([adjusted_mean(found, NEWEST) or 0 for found in early])
        < np.mean([found.mean or 0 for found in early]) - 0.01
    )
    assert adjusted_mean(judged(rng, 1.0, (16,)), NEWEST) is None


def test_an_early_stop_is_adjusted_and_replicated_with_as_many_seeds_as_were_planned() -> None:
    found = judged(np.random.default_rng(3), 1.5)
    adjusted = adjusted_mean(found, NEWEST)
    assert found.look == 1 and found.mean is not None and adjusted is not None and adjusted < found.mean - 0.01
    assert replication_seeds(replace(found, adjusted_mean=adjusted), 0.05, NEWEST)[0] == LOOKS[-1]


def test_the_adjusted_estimate_is_odd() -> None:
    """It has the sign of the mean, and swapping the arms changes only the sign."""
    rng = np.random.default_rng(2)
    found = judged(rng, 0.8)
    swapped = replace(found, mean=-(found.mean or 0))
    a, b = adjusted_mean(found, NEWEST), adjusted_mean(swapped, NEWEST)
    assert a is not None and b is not None and a == pytest.approx(-b, abs=1e-3)


def test_replications_succeed_four_times_in_five_if_effect_and_sd_are_as_estimated() -> None:
    rng, powers = np.random.default_rng(3), []
    for _ in range(120):
        found = judged(rng, -0.9)
        if found.verdict != "better":
            continue
        found = replace(found, adjusted_mean=adjusted_mean(found, NEWEST))
        n, reason = replication_seeds(found, 0.05, NEWEST)
        assert 4 <= n <= 64 and reason.startswith(f"{n} seeds") and "adjusted for stopping" in reason
        shift = -0.9 * math.sqrt(n)
        powers.append(stats.nct.cdf(-stats.t.ppf(0.975, n - 1), n - 1, shift))
    assert len(powers) > 60 and np.mean(powers) > 0.77, "over what chance shows; as many seeds as the stop had: 0.6"


def test_the_number_of_seeds_follows_from_the_adjusted_estimate_and_the_upper_limit_of_the_sd() -> None:
    rng = np.random.default_rng(4)
    found = replace(judged(rng, -1.5), mean=-1.5, sd_difference=1.0, n=8, margin=0.0, adjusted_mean=-1.2, looks=())
    n, _ = replication_seeds(found, 0.05, NEWEST)
    upper = math.sqrt(7 / stats.chi2.ppf(0.2, 7))
    power = [stats.nct.sf(stats.t.ppf(0.975, k - 1), k - 1, 1.2 / upper * math.sqrt(k)) for k in (n - 1, n)]
    assert power[0] < 0.8 + 0.01 and power[1] > 0.8 - 0.01
    assert replication_seeds(replace(found, adjusted_mean=-0.05), 0.05, NEWEST)[0] == 64
    assert "the most" in replication_seeds(replace(found, adjusted_mean=-0.05), 0.05, NEWEST)[1]
    assert replication_seeds(replace(found, adjusted_mean=-50.0), 0.05, NEWEST)[0] == 4


def test_a_verdict_on_failure_rates_is_replicated_with_as_many_seeds() -> None:
    failing = {seed: 9.0 if seed < 5 else 1.5 + 0.01 * seed for seed in range(8)}
    values = {"b": failing, "a": {seed: 1.5 + 0.01 * seed for seed in range(8)}}
    (effect,) = Rules(looks=(), failure=5.0).judge(values, [Claim("a", "b")])
    seeds, reason = replication_seeds(effect, 0.05, NEWEST)
    assert effect.verdict == "better" and seeds == 8 and "failure rates" in reason


def test_a_claim_that_stopped_at_the_first_look_replicates() -> None:
    """With as many seeds as its stop had, one in five does."""
    rng, powers, repeated = np.random.default_rng(5), [], []
    for _ in range(600):
        found = judged(rng, -0.85, (4, 8, 16))
        if found.verdict == "better" and found.look == 1:
            n, reason = replication_seeds(found, 0.05, NEWEST)
            assert n >= 16 and ("as many as were planned" in reason) == (n == 16)
            for seeds, kept in ((n, powers), (4, repeated)):
                kept.append(stats.nct.cdf(-stats.t.ppf(0.975, seeds - 1), seeds - 1, -0.85 * math.sqrt(seeds)))
    assert len(powers) > 20 and np.mean(powers) > 0.8 > 0.3 > np.mean(repeated)


def test_the_power_at_half_the_estimate_is_said() -> None:
    rng = np.random.default_rng(4)
    found = replace(judged(rng, -1.5), mean=-1.5, sd_difference=1.0, n=8, margin=0.0, adjusted_mean=-1.2, looks=())
    for estimate in (-1.2, -0.05):
        n, reason = replication_seeds(replace(found, adjusted_mean=estimate), 0.05, NEWEST)
        shift = abs(estimate) / 2 / math.sqrt(7 / stats.chi2.ppf(0.2, 7)) * math.sqrt(n)
        half = 100 * stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, shift)
        said = re.search(r", and (\d+)% if the effect is half of that$", reason)
        assert said and abs(int(said[1]) - half) < 1.5
