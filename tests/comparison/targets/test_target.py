"""Outcomes against a target: tests and intervals beside scipy's, error rates over entries and looks by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from partwise.comparison.targets.one_sample import median_against
from partwise.comparison.targets.runs_needed import power_against_target, runs_needed
from partwise.comparison.targets.target import Target, judge_entries
from partwise.comparison.targets.target_text import headline, notes
from partwise.config import ConfigError

RUNS = [3.2791, 3.2778, 3.2787, 3.2784]


def test_one_entry_has_the_p_values_and_the_interval_of_one_sided_t_tests() -> None:
    (entry,) = judge_entries({"kernel": RUNS}, Target(3.28, alpha=0.01))
    below = stats.ttest_1samp(RUNS, 3.28, alternative="less").pvalue
    above = stats.ttest_1samp(RUNS, 3.28, alternative="greater").pvalue
    low, high = stats.ttest_1samp(RUNS, 3.28).confidence_interval(0.98)
    assert entry.outcome == "reached" and entry.confidence == pytest.approx(0.98)
    assert (entry.p_reached, entry.p_missed) == pytest.approx((below, above), rel=1e-9)
    assert (entry.low, entry.high) == pytest.approx((low, high), rel=1e-12)


def test_higher_is_better_mirrors_the_outcome() -> None:
    (entry,) = judge_entries({"kernel": RUNS}, Target(3.28, lower_is_better=False))
    (mirrored,) = judge_entries({"kernel": [-value for value in RUNS]}, Target(-3.28, lower_is_better=False))
    assert entry.outcome == "missed" and mirrored.outcome == "reached"


def test_an_interval_excludes_the_target_exactly_if_the_outcome_is_decided() -> None:
    rng = np.random.default_rng(1)
    seen = set()
    for _ in range(300):
        values = {f"e{i}": list(rng.normal(rng.choice([-1.5, 0.0, 1.5]), 1, 5)) for i in range(3)}
        for target in (Target(0.0, 0.05), Target(0.0, 0.05, looks=(3, 5)), Target(0.0, 0.2, times=True)):
            for entry in judge_entries(values, target):
                below = entry.high is not None and entry.high < 0
                above = entry.low is not None and entry.low > 0
                assert (below, above) == (entry.outcome == "reached", entry.outcome == "missed")
                seen.add(entry.outcome)
    assert seen == {"reached", "missed", "undecided"}


def false_reached(values: np.ndarray, target: Target) -> float:
    """The share of families of null entries (families, entries, runs) in which any is called reached."""
    found = sum(
        any(
            entry.outcome == "reached"
            for entry in judge_entries({str(i): [*runs] for i, runs in enumerate(family)}, target)
        )
        for family in values
    )
    return found / len(values)


@pytest.mark.parametrize(("looks", "entries"), [((), 1), ((), 5), ((3, 6), 1), ((3, 6), 4), ((4, 8, 16), 1)])
def test_false_reached_stay_at_alpha_over_entries_and_looks(looks: tuple[int, ...], entries: int) -> None:
    draws, alpha = 2500, 0.05
    values = np.random.default_rng(7).normal(3.28, 0.0013, (draws, entries, looks[-1] if looks else 5))
    rate = false_reached(values, Target(3.28, alpha, looks=looks))
    slack = 3.3 * math.sqrt(alpha * (1 - alpha) / draws)
    assert alpha - slack < rate < alpha + slack


def test_a_decided_look_is_kept_when_later_runs_disagree() -> None:
    early = [-1.0, -1.01, -0.99]
    (entry,) = judge_entries({"a": [*early, 50.0, 60.0, 70.0]}, Target(0.0, looks=(3, 6)))
    assert (entry.outcome, entry.n, entry.unused, entry.look) == ("reached", 3, 3, 1)
    with pytest.raises(ConfigError, match="the first look needs 3 runs, and there are 2"):
        judge_entries({"a": early[:2]}, Target(0.0, looks=(3, 6)))


def test_a_run_without_a_value_leaves_no_mean_and_is_never_dropped() -> None:
    target = Target(3.28)
    (entry,) = judge_entries({"kernel": [*RUNS, math.nan]}, target)
    assert (entry.outcome, entry.center, entry.p_reached, entry.not_finite) == ("undecided", None, None, 1)
    assert "1 of 5 runs has no finite value" in headline(entry, target)
    (large,) = judge_entries({"kernel": [*RUNS, 1e200]}, target)
    assert "1 of 5 runs has no finite value" in headline(large, target)
    (same,) = judge_entries({"copy": [3.27, 3.27, 3.27]}, target)
    assert same.outcome == "undecided" and "do not vary" in headline(same, target)


def test_a_known_sd_needs_its_source_which_the_verdict_repeats() -> None:
    target = Target(3.28, 0.001, known_sd=0.0013, sd_source="40 runs of the baseline")
    entries = judge_entries({"one": [3.2759]}, target)
    assert entries[0].p_reached == pytest.approx(stats.norm.cdf((3.2759 - 3.28) / 0.0013), rel=1e-9)
    assert entries[0].outcome == "reached" and any("40 runs of the baseline" in note for note in notes(entries, target))
    for settings in ({"known_sd": 0.0013}, {"known_sd": 0.0013, "sd_source": " "}, {"sd_source": "a paper"}):
        with pytest.raises(ConfigError, match="--sd-source"):
            Target(3.28, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 2, 6, 7, 12, 25])
def test_the_median_has_the_sign_test_and_bounds_that_miss_it_at_most_as_often_as_stated(n: int) -> None:
    values = [float(i) for i in range(n)]
    found = median_against(values, 2.5)
    below = sum(value < 2.5 for value in values)
    assert found.p_below == pytest.approx(stats.binomtest(below, n, alternative="greater").pvalue, rel=1e-9)
    assert found.p_above == pytest.approx(stats.binomtest(n - below, n, alternative="greater").pvalue, rel=1e-9)
    low, high = found.interval(0.01)
    if n < 7:
        assert (low, high) == (None, None)
    else:
        assert low is not None and high is not None and low + high == n - 1
        assert stats.binom.cdf(low, n, 0.5) <= 0.01 < stats.binom.cdf(low + 1, n, 0.5)


def test_runs_that_never_arrive_are_late_and_a_tie_counts_for_neither_side() -> None:
    (entry,) = judge_entries({"a": [80.0] * 7 + [math.inf]}, Target(90.0, 0.05, times=True))
    assert (entry.outcome, entry.center, entry.not_finite) == ("reached", 80.0, 1)
    assert entry.p_reached == pytest.approx(9 / 256)
    tied = median_against([90.0] * 9, 90.0)
    assert (tied.p_below, tied.p_above) == (1.0, 1.0)
    (never,) = judge_entries({"a": [math.inf] * 8}, Target(90.0, times=True))
    assert never.outcome == "missed" and never.center is None and never.low is None


def test_power_is_that_of_the_noncentral_t_and_the_runs_are_the_fewest() -> None:
    for distance, n, alpha in ((1.0, 5, 0.05), (0.3, 40, 0.01), (2.0, 3, 0.01)):
        critical = stats.t.isf(alpha, n - 1)
        exact = stats.nct.sf(critical, n - 1, distance * math.sqrt(n))
        assert power_against_target(distance, 1.0, n, alpha) == pytest.approx(exact, abs=1e-6)
    n = runs_needed(0.0015, 0.0013, 0.01)
    assert power_against_target(0.0015, 0.0013, n, 0.01) >= 0.8 > power_against_target(0.0015, 0.0013, n - 1, 0.01)
