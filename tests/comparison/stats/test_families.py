"""Families of claims: Holm over "no difference" and over "at least the margin", recomputed here with numpy and scipy."""

import math
import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lazy_imports import lazy_module
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.families import decide, holm, holm_levels
from partwise.comparison.stats.group_sequential import nominal_levels
from partwise.comparison.stats.intervals import judge, measure
from partwise.comparison.stats.methods import METHODS, find_method
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.verdict_text import undetected_failures
from partwise.config import ConfigError

multitest = lazy_module("statsmodels.stats.multitest")

MARGIN = 0.006


def effects_of(rows: np.ndarray, looks: tuple[int, ...], **options: float) -> list[Effect]:
    """Each row but the first judged against it."""
    values = {f"a{i}": dict(enumerate(row.tolist())) for i, row in enumerate(rows)}
    rules = Rules(margin=MARGIN, looks=looks, **options)  # type: ignore[arg-type]
    return rules.judge(values, [Claim(f"a{i}", "a0") for i in range(1, len(rows))])


def half_widths(differences: np.ndarray, level: float) -> np.ndarray:
    n = differences.shape[1]
    return stats.t.isf(level / 2, n - 1) * differences.std(axis=1, ddof=1) / math.sqrt(n)


def step_down(rejects: Sequence[Sequence[bool]]) -> list[int]:
    """Holm's method given whether each of k claims is rejected at alpha / k, ..., alpha: the claims it rejects, in order."""
    k, rejected = len(rejects), []
    while len(rejected) < k:
        level = len(rejected)  # alpha / (k - level)
        found = [i for i in range(k) if i not in rejected and rejects[i][level]]
        if not found:
            break
        rejected.append(found[0])
    return rejected


def test_holm_agrees_with_statsmodels() -> None:
    p = [0.03, 0.001, 0.2, 0.02, 0.02, 0.9]
    assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1], rel=1e-12)
    assert holm([]) == [] and holm_levels([], 0.05) == []


def test_the_level_of_each_claim() -> None:
    """Two of four are rejected, at alpha / 4 and alpha / 3; the others were tested at alpha / 2."""
    levels = holm_levels([0.3, 0.001, 0.2, 0.015], 0.05)
    assert levels == pytest.approx([0.05 / 2, 0.05 / 4, 0.05 / 2, 0.05 / 3])
    assert holm_levels([0.001, 0.002], 0.05) == [0.025, 0.05]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.sampled_from([3, 8, 16]))
def test_the_verdicts_of_one_look_are_holm_over_both_families(seed: int, k: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.005, (k + 1, n)) + rng.choice([0.0, 0.004, 0.01], (k + 1, 1))
    d = x[1:] - x[0]
    center = d.mean(axis=1)
    halves = [half_widths(d, 0.05 / (k - s)) for s in range(k)]
    differ = step_down([[bool(abs(center[i]) > half[i]) for half in halves] for i in range(k)])
    inner = [half_widths(d, 0.1)] if k == 1 else halves  # a claim alone is tested at alpha on each side
    equal = step_down([[bool(abs(center[i]) + half[i] <= MARGIN) for half in inner] for i in range(k)])
    p = [stats.ttest_rel(row, x[0]).pvalue for row in x[1:]]
    adjusted = multitest.multipletests(p, method="holm")[1]
    for i, effect in enumerate(effects_of(x, (n,))):
        direction = "better" if center[i] < 0 else "worse"
        assert effect.verdict == ("equivalent" if i in equal else direction if i in differ else "undecided")
        assert effect.n_comparisons == k and effect.total_alpha == 0.05
        assert math.isclose(effect.p or 0.0, p[i], rel_tol=1e-9) and effect.p_looks == effect.p
        assert math.isclose(effect.p_adjusted or 0.0, adjusted[i], rel_tol=1e-9)
        if effect.verdict == "undecided":  # the wider of both families' last intervals
            level = 0.05 / (k - min(len(differ), len(equal)))
            assert math.isclose((effect.high or 0.0) - center[i], half_widths(d, level)[i], rel_tol=1e-9)
            assert effect.alpha == effect.nominal_alpha == level and effect.confidence == 1 - level


def test_an_undecided_claim_has_the_wider_of_its_two_intervals() -> None:
    """One of three differs and none is equivalent: the others stay at a third of alpha, and each look at a part of it."""
    x = np.random.default_rng(0).normal(0, 0.005, (4, 4)) + np.array([[0.0], [0.1], [0.0], [0.001]])
    differs, *others = effects_of(x, (4, 8))
    assert differs.verdict == "worse" and differs.alpha == 0.05 / 3
    level = nominal_levels((4, 8), 0.05 / 3)[0]
    for effect, half in zip(others, half_widths(x[2:] - x[0], level), strict=True):
        assert effect.verdict == "undecided" and effect.alpha == 0.05 / 3
        assert math.isclose((effect.high or 0.0) - (effect.mean or 0.0), half, rel_tol=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 30))
def test_untested_claims_count_as_ones_that_are_not_rejected(seed: int, k: int, untested: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.005, (k + 1, 8)) + rng.choice([0.0, 0.004, 0.01, 0.03], (k + 1, 1))
    effects = effects_of(x, ())
    found = decide(effects, 0.05, untested)
    p = [*(effect.p or 0.0 for effect in effects), *[1.0] * untested]
    expected = multitest.multipletests(p, method="holm")[1]
    assert [effect.p_adjusted for effect in found] == pytest.approx(expected[:k], rel=1e-9)
    assert all(effect.n_comparisons == k + untested for effect in found)
    for before, after in zip(decide(effects, 0.05), found, strict=True):  # never wider with fewer members
        assert (after.high or 0.0) - (after.low or 0.0) >= (before.high or 0.0) - (before.low or 0.0) - 1e-15 or (
            before.verdict != after.verdict
        )


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 10),
    st.sampled_from([(4, 8, 16), (8,), (), (2, 3, 4)]),
    st.sampled_from([0.01, 0.05, 0.2]),
)
def test_the_interval_is_the_one_that_the_verdict_follows_from(
    seed: int, k: int, looks: tuple[int, ...], alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    x = (
        rng.normal(0, 0.005, (k + 1, 16))
        + 0.004 * rng.normal(size=16)
        + rng.choice([0, 0.002, 0.006, 0.012], (k + 1, 1))
    )
    for effect in effects_of(x, looks, alpha=alpha):
        assert effect.low is not None and effect.high is not None and effect.mean is not None
        excludes = effect.low > 0 or effect.high < 0
        narrower = effect.equivalence_low, effect.equivalence_high
        low, high = (effect.low, effect.high) if None in narrower else narrower
        inside = low is not None and low >= -MARGIN and high is not None and high <= MARGIN
        if effect.verdict == "equivalent":
            assert inside
        elif effect.verdict == "undecided":
            assert not excludes and not inside
        else:
            assert excludes and (effect.verdict == "better") == (effect.high < 0)
        assert (effect.verdict == "equivalent") == ((effect.p_equivalence_adjusted or 0.0) <= alpha)
        assert alpha / k <= effect.alpha <= alpha
        level = effect.nominal_alpha
        differences = np.array([effect.differences], float)
        assert math.isclose(effect.high - effect.mean, half_widths(differences, level)[0], rel_tol=1e-9)
        exact = nominal_levels(looks, effect.alpha)[effect.look - 1] if looks else effect.alpha
        assert math.isclose(level, exact, rel_tol=0.05 if alpha != 0.05 or looks == (2, 3, 4) else 2e-3)
        stated = re.findall(r"([\d.]+)%", effect.sentence.removesuffix(undetected_failures(effect)))
        single = effect.verdict == "equivalent" and k == 1
        levels = [2 * effect.alpha, *[effect.alpha] * (1 + excludes)] if single else [effect.alpha]
        assert [float(text) for text in stated] == [pytest.approx(100 * (1 - each), abs=0.006) for each in levels]
        assert (effect.equivalence_low is not None) == single


NARROW = [0.0, 0.0012, -0.0031, 0.0044, -0.0022, 0.0027, 0.0071, -0.0035]
"""Differences whose 90% interval lies within 0.0035 and whose 95% interval does not."""


def equivalence(method: int, claims: int = 1, looks: tuple[int, ...] = (), untested: int = 0) -> Effect:
    values = {"a": dict.fromkeys(range(8), 0.0)} | {f"b{i}": dict(enumerate(NARROW)) for i in range(claims)}
    effects = Rules(margin=0.0035, looks=looks, method=method).judge(
        values, [Claim(f"b{i}", "a") for i in range(claims)]
    )
    return find_method(method).decide(effects, 0.05, untested)[0]


def test_a_single_claim_is_equivalent_by_two_one_sided_tests_at_alpha() -> None:
    tests = [
        stats.ttest_1samp(NARROW, end, alternative=side).pvalue
        for end, side in ((-0.0035, "greater"), (0.0035, "less"))
    ]
    assert 0.025 < max(tests) < 0.05
    found = equivalence(3)
    assert found.verdict == "equivalent" and found.p_equivalence_adjusted == pytest.approx(max(tests), rel=1e-9)
    for level, ends in ((0.9, (found.equivalence_low, found.equivalence_high)), (0.95, (found.low, found.high))):
        assert ends == pytest.approx(stats.t.interval(level, 7, np.mean(NARROW), stats.sem(NARROW)), rel=1e-9)
    assert found.high is not None and found.high > 0.0035
    assert find_method(3).decide([found], 0.05) == [found]


@pytest.mark.parametrize(("method", "claims", "untested"), [(1, 1, 0), (2, 1, 0), (3, 2, 0), (3, 1, 1)])
def test_older_methods_and_several_claims_halve_alpha(method: int, claims: int, untested: int) -> None:
    """Each test is at alpha / 2; of two claims with the same values the smallest p is doubled by Holm's method as well."""
    found, p = (
        equivalence(method, claims, untested=untested),
        stats.ttest_1samp(NARROW, 0.0035, alternative="less").pvalue,
    )
    assert found.verdict == "undecided" and found.equivalence_low is None and found.equivalence_high is None
    assert found.p_equivalence_adjusted == pytest.approx(2 * p * (claims + untested), rel=1e-9)


def test_two_one_sided_tests_at_a_look_are_at_its_level() -> None:
    (found, at_half), nominal = (equivalence(method, looks=(4, 8)) for method in (3, 2)), nominal_levels((4, 8), 0.1)[1]
    p = 2 * stats.ttest_1samp(NARROW, 0.0035, alternative="less").pvalue
    assert (found.verdict == "equivalent") == (p <= nominal) and at_half.verdict == "undecided"
    assert found.p_equivalence_adjusted == pytest.approx((at_half.p_equivalence_adjusted or 0.0) / 2)


def test_a_mean_outside_the_margin_is_equivalent_at_no_level() -> None:
    values = {"a": dict.fromkeys(range(8), 0.0), "b": {seed: x + 0.1 for seed, x in enumerate(NARROW)}}
    (found,) = Rules(margin=0.0035, alpha=0.5, looks=()).judge(values, [Claim("b", "a")])
    assert found.verdict == "worse" and found.p_equivalence_adjusted == 1.0


def test_seeds_to_decide_follow_from_the_tests_of_the_method() -> None:
    """Equal arms with an SD of 1, of which the 80% upper limit counts, and a margin of 1."""
    noise = np.array([1.0, -1.0, 1.0, -1.0])
    values = {"a": dict.fromkeys(range(4), 0.0), "b": dict(enumerate((noise / noise.std(ddof=1)).tolist()))}
    upper = math.sqrt(3 / stats.chi2.ppf(0.2, 3))
    for method, level in ((2, 0.975), (3, 0.95)):
        (found,) = Rules(margin=1.0, looks=(), method=method).judge(values, [Claim("b", "a")])
        wanted = next(n for n in range(5, 99) if (stats.t.ppf(level, n - 1) + 0.8416) * upper / math.sqrt(n) <= 1)
        assert found.verdict == "undecided" and found.seeds_to_decide == wanted


def test_a_small_difference_says_why_it_is_not_equivalent() -> None:
    """Nine arms differ far; the tenth's interval is inside the margin at 95%, but not at the level of ten such tests."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.005, (2, 16))
    noise = (noise[0] - noise[0].mean()) / noise[0].std(ddof=1)
    rows = np.vstack([np.zeros(16), *(0.001 * noise + (0.0029 if i == 9 else 0.1) for i in range(10))])
    values = {f"a{i}": dict(enumerate(row.tolist())) for i, row in enumerate(rows)}
    effect = Rules(margin=0.0035, looks=(16,)).judge(values, [Claim(f"a{i}", "a0") for i in range(1, 11)])[-1]
    assert effect.verdict == "worse" and effect.high is not None and effect.high <= 0.0035
    assert effect.p_equivalence_adjusted == pytest.approx(0.3, abs=0.05)


def test_ten_arms_at_the_margin_are_rarely_called_equivalent() -> None:
    """Each alone errs in up to 2.5% of cases; without Holm, any of ten does in 15.5%."""
    rng, draws, wrong, single = np.random.default_rng(1), 600, 0, 0
    for _ in range(draws):
        x = rng.normal(0, 0.001, (11, 16))
        x[1:] += MARGIN
        wrong += any(effect.verdict == "equivalent" for effect in effects_of(x, (16,)))
        d = x[1:] - x[0]
        single += bool((d.mean(axis=1) + half_widths(d, 0.05) <= MARGIN).any())
    assert wrong / draws <= stats.binom.isf(1e-5, draws, 0.025) / draws and single / draws > 0.08


def test_a_control_is_a_family_of_its_own() -> None:
    rng = np.random.default_rng(2)
    values = {name: dict(enumerate(rng.normal(0, 0.005, 16).tolist())) for name in "abcd"}
    claims = [Claim("b", "a"), Claim("c", "a", "negative"), Claim("d", "a", "positive")]
    effects = Rules().judge(values, claims)
    assert [effect.n_comparisons for effect in effects] == [1, 1, 1]
    assert effects == [Rules().judge(values, [claim])[0] for claim in claims]


def test_an_arm_that_fails_more_often_is_worse_and_counts_in_the_family() -> None:
    """Its p, of Fisher's test, enters Holm beside the t test of the other arm."""
    good = dict(enumerate(np.random.default_rng(3).normal(1.5, 0.005, 8).tolist()))
    other = {seed: value + 0.001 * (-1) ** seed for seed, value in good.items()}
    failing = {**dict.fromkeys(range(7), 9.0), 7: 1.5}
    effect, second = Rules(looks=(), failure=4.0).judge(
        {"a": good, "b": failing, "c": other}, [Claim("b", "a"), Claim("c", "a")]
    )
    p = stats.fisher_exact([[7, 1], [0, 8]]).pvalue
    assert math.isclose(effect.p_failures or 0.0, p, rel_tol=1e-9) and effect.p_adjusted == 2 * (
        effect.p_failures or 0.0
    )
    assert effect.verdict == "worse" and effect.mean is None and effect.p_equivalence is None
    assert second.n_comparisons == 2
    assert judge("a", "b", good, failing, failure=4.0).verdict == "better"


def test_failures_at_looks_are_tested_at_the_increment_of_alpha() -> None:
    looks = (4, 8, 16)
    runs, bad = dict.fromkeys(range(8), 1.0), {**dict.fromkeys(range(5), math.nan), **dict.fromkeys(range(5, 8), 1.0)}
    effect = decide([measure("b", "a", bad, runs, looks=looks, look=2)], 0.05)[0]
    p = stats.fisher_exact([[5, 3], [0, 8]]).pvalue
    assert math.isclose(effect.p_failures or 0.0, p, rel_tol=1e-9)
    assert math.isclose(effect.p_looks or 0.0, p * 16 / (8 - 4), rel_tol=1e-9)
    assert effect.verdict is None


def test_equal_failure_rates_rarely_differ_over_looks() -> None:
    """Runs that fail at random, in both arms alike, beside normal values: at most 5% false verdicts over three looks."""
    rng, draws = np.random.default_rng(4), 1500
    for rate in (0.1, 0.5):
        wrong = 0
        for _ in range(draws):
            x = np.where(rng.random((2, 16)) < rate, np.nan, rng.normal(0, 0.005, (2, 16)))
            wrong += effects_of(x, (4, 8, 16))[0].verdict in ("better", "worse")
        assert wrong / draws <= stats.binom.isf(1e-5, draws, 0.05) / draws


def test_an_invalid_alpha_is_refused() -> None:
    effect = measure("a", "b", {0: 1.0, 1: 2.0}, {0: 1.0, 1: 1.5})
    for alpha in (0.0, 0.6, math.nan):
        with pytest.raises(ConfigError, match="expected an error probability"):
            decide([effect], alpha)


@pytest.mark.parametrize("n", [4, 8])
def test_as_many_seeds_as_are_said_to_decide_do_so_in_four_of_five_new_comparisons(n: int) -> None:
    """Of pairs with a mean of 0.5 SDs, whose SD is estimated; as if the SD were known, 4 seeds gave 20 points less."""
    rng = np.random.default_rng(0)
    shares: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(400):
        noise = rng.standard_normal(n)
        pairs = 0.5 + noise - noise.mean()  # the mean is as estimated: only the SD varies
        values, baseline = dict(enumerate((5 + pairs).tolist())), dict.fromkeys(range(n), 5.0)
        for method, kept in shares.items():
            (effect,) = METHODS[method].decide([measure("b", "a", values, baseline, margin=0.01)], 0.05)
            if effect.seeds_to_decide:
                seeds = effect.seeds_to_decide
                limit = stats.t.ppf(0.975, seeds - 1)
                kept.append(stats.nct.sf(limit, seeds - 1, 0.5 * math.sqrt(seeds)))
    assert min(map(len, shares.values())) > 30
    assert np.mean(shares[2]) > 0.8 > np.mean(shares[1]), {k: np.mean(v) for k, v in shares.items()}


def test_the_seeds_to_decide_of_unpaired_runs_assume_the_upper_limit_of_the_sd_of_each_arm() -> None:
    arms = [5.0, 5.3, 5.9, 5.4], [5.1, 4.6, 5.2, 5.5, 4.9, 5.0]
    values, baseline = (dict(enumerate(arm)) for arm in arms)
    (effect,) = METHODS[2].decide([measure("b", "a", values, baseline, margin=0.01, paired=False)], 0.05)
    upper = [np.std(arm, ddof=1) * math.sqrt((len(arm) - 1) / stats.chi2.ppf(0.2, len(arm) - 1)) for arm in arms]

    def decides(n: int) -> bool:
        parts = [sd**2 / n for sd in upper]
        df = sum(parts) ** 2 / sum(part**2 / (n - 1) for part in parts)
        return bool(
            (stats.t.ppf(0.975, df) + 0.8416) * math.sqrt(sum(parts)) < abs(np.mean(arms[0]) - np.mean(arms[1]))
        )

    assert effect.seeds_to_decide == next(n for n in range(5, 1001) if decides(n))
