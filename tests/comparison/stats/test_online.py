"""Online control of false discoveries: levels against the paper's formula, and error rates by simulation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from online_searches import ORDERS, Search, searches
from partwise.comparison.stats.online import online_level, weight
from partwise.config import ConfigError

ALPHA = 0.05
TESTS, PAIRS, NULL = 200, 8, 0.9


# the sum of j^-1.3 to infinity, by its first million terms and the Euler-Maclaurin remainder
TOTAL = np.sum(np.arange(1.0, 1e6) ** -1.3) + 1e6**-0.3 / 0.3 + 0.5 * 1e6**-1.3


def reference_level(t: int, ends: list[int], rejected: list[bool]) -> float:
    """alpha_t of Zrnic, Ramdas & Jordan (2021), given R_j, and E_j, the time after which the outcome of test j is known."""

    def gamma(j: int) -> float:
        return float(j**-1.3 / TOTAL)

    def r(k: int) -> int | None:
        """min{i in [t - 1]: sum over j <= i of R_j 1{E_j <= i} >= k}"""
        for i in range(1, t):
            if sum(rejected[j - 1] for j in range(1, i + 1) if ends[j - 1] <= i) >= k:
                return i
        return None

    w = ALPHA / 2
    level, k = gamma(t) * w, 1
    while (known := r(k)) is not None:
        level += gamma(t - known) * (ALPHA - w if k == 1 else ALPHA)
        k += 1
    return level


def levels(ends: list[int], outcomes: list[bool]) -> list[float]:
    """The product's level of each test; the result of test j is known from time ends[j] on."""
    found = []
    for started in range(len(ends) + 1):
        known = [
            end for end, rejected in zip(ends[:started], outcomes[:started], strict=True) if rejected and end <= started
        ]
        found.append(online_level(started, known, ALPHA))
    return found


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=25))
def test_levels_are_those_of_the_paper(tests: list[tuple[int, bool]]) -> None:
    ends = [number + delay for number, (delay, _) in enumerate(tests, start=1)]
    rejected = [outcome for _, outcome in tests]
    expected = [reference_level(t, ends[: t - 1], rejected[: t - 1]) for t in range(1, len(tests) + 2)]
    assert levels(ends, rejected) == pytest.approx(expected, rel=1e-9)


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40))
def test_levels_spend_at_most_alpha_per_discovery(tests: list[tuple[int, bool]]) -> None:
    """The sum of all levels is at most alpha times the larger of 1 and the number of discoveries: the estimate of the FDP."""
    ends = [number + delay for number, (delay, _) in enumerate(tests, start=1)]
    rejected = [outcome for _, outcome in tests]
    assert math.fsum(levels(ends, rejected)[:-1]) <= ALPHA * max(1, sum(rejected))


def test_weights_sum_to_one() -> None:
    tests = 20_000
    remainder = stats.zipf(1.3).sf(tests)
    assert math.fsum(weight(test) for test in range(1, tests + 1)) + remainder == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("started", "known", "alpha", "message"),
    [
        (3, [4], 0.05, "known after 4"),
        (3, [0], 0.05, "known after 0"),
        (1, [1, 1], 0.05, "2 disc"),
        (0, [], 1.5, "alpha=1.5"),
    ],
)
def test_impossible_histories_are_refused(started: int, known: list[int], alpha: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        online_level(started, known, alpha)


def simulate(effect: float, delay: int, draws: int, seed: int, shared: float = 0.0) -> tuple[float, float]:
    """(mean fraction of false discoveries, fraction of effects found) over sequences of 200 t tests of 8 pairs.

    `effect` is in SDs of a difference, each test's outcome arrives up to `delay` tests later, and differences of all tests
    have the correlation `shared`, as if one baseline served them all.
    """
    rng = np.random.default_rng(seed)
    false, found = [], []
    for _ in range(draws):
        null = rng.random(TESTS) < NULL
        own, common = rng.standard_normal((TESTS, PAIRS)), rng.standard_normal(PAIRS)
        x = np.sqrt(1 - shared) * own + np.sqrt(shared) * common + np.where(null, 0.0, effect)[:, None]
        p = stats.ttest_1samp(x, 0.0, axis=1).pvalue
        ends = np.arange(1, TESTS + 1) + rng.integers(0, delay + 1, TESTS)
        rejected = np.zeros(TESTS, bool)
        for t in range(TESTS):
            known = ends[:t][rejected[:t] & (ends[:t] <= t)]
            rejected[t] = p[t] <= online_level(t, known.tolist(), ALPHA)
        false.append(np.sum(rejected & null) / max(1, np.sum(rejected)))
        found.append(np.sum(rejected & ~null) / max(1, np.sum(~null)))
    return float(np.mean(false)), float(np.mean(found))


@pytest.mark.parametrize("delay", [0, 20])
def test_few_false_discoveries_and_most_effects(delay: int) -> None:
    """At most 5% of discoveries are false, and 60% of effects of three SDs of a difference are found, also if results arrive
    out of order."""
    fdr, power = simulate(3.0, delay, draws=120, seed=delay)
    assert fdr <= ALPHA
    assert power >= 0.6


def test_few_false_discoveries_if_comparisons_share_a_baseline() -> None:
    """Differences from one baseline on the same seeds correlate, which the paper's theorem excludes."""
    fdr, _ = simulate(3.0, 5, draws=120, seed=7, shared=0.5)
    assert fdr <= ALPHA


def test_without_effects_false_discoveries_are_rare() -> None:
    """Without effects every discovery is false, so the probability of any is at most 5%; at a fixed level it is near 1."""
    rng = np.random.default_rng(1)
    draws, any_false = 400, 0
    for p in rng.random((draws, TESTS)):
        known: list[int] = []
        for t in range(TESTS):
            if p[t] <= online_level(t, known, ALPHA):
                known.append(t + 1)
        any_false += bool(known)
    assert any_false / draws <= ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / draws)


@pytest.mark.parametrize("shared", [False, True])
def test_changes_that_harm_do_not_pay_for_false_keeps(shared: bool) -> None:
    """Whole searches: at most 5% of the kept are false if only what is better earns a level, and more if harm earns too."""
    hostile = Search(200, harmful=0.4, crashing=0.1, shared=shared)
    assert searches(hostile, "better", draws=200).false_rate <= 0.02
    assert searches(hostile, "better or worse", draws=200).false_rate > 0.15


def test_changes_that_crash_are_never_kept_and_earn_nothing() -> None:
    """Of 90 crashing changes none is kept, and the levels are as low as after 90 changes that do nothing."""
    crashing = Search(100, helpful=0.1, crashing=0.9, order="harmful first")
    kept, earned = (searches(crashing, rule, draws=200) for rule in ("better", "better or worse"))
    assert kept.false_rate == earned.false_rate == 0.0
    assert kept.found < earned.found - 0.05


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shared", [False, True])
def test_mixed_searches_keep_few_false_changes_in_any_order(order: str, shared: bool) -> None:
    mixed = Search(200, helpful=0.1, harmful=0.2, crashing=0.1, order=order, shared=shared)
    found = searches(mixed, "better", draws=150)
    assert found.false_rate <= 0.03
    assert found.found >= 0.6


@pytest.mark.parametrize("failing", [0.02, 0.1, 0.5, 0.7])
@pytest.mark.parametrize("shared", [False, True])
def test_baselines_that_fail_keep_few_false_changes(failing: float, shared: bool) -> None:
    """Changes that fail as often as the baseline are seldom called better, also if all share one unlucky baseline."""
    for helpful in (0.0, 0.1):
        search = Search(200, helpful=helpful, shared=shared, failing=failing)
        assert searches(search, "better", draws=400).false_rate <= 0.03
