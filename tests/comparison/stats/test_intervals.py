"""Intervals, power and verdicts against scipy, statsmodels, exact values and simulation."""

import dataclasses
import json
import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lazy_imports import lazy_module
from partwise.comparison.stats.effect import MAX_SEEDS_TO_DECIDE, Effect
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.number_format import choose_decimals, format_number, format_percent
from partwise.comparison.stats.power import (
    minimum_detectable_effect,
    paired_t_power,
    seeds_needed,
)
from partwise.comparison.stats.samples import pooled_sd, welch
from partwise.config import ConfigError

power = lazy_module("statsmodels.stats.power")
weightstats = lazy_module("statsmodels.stats.weightstats")

SWAPPED = {"better": "worse", "worse": "better", "equivalent": "equivalent", "undecided": "undecided", None: None}


def runs(values: object) -> dict[int, float]:
    return {seed: float(value) for seed, value in enumerate(np.asarray(values))}


def draw(seed: int, n: int, shift: float = 0.0) -> tuple[dict[int, float], dict[int, float]]:
    rng = np.random.default_rng(seed)
    common = rng.normal(1.47, 0.004, n)
    return runs(common + rng.normal(shift, 0.003, n)), runs(common + rng.normal(0, 0.003, n))


def close(a: float | None, b: float, rel: float = 1e-10) -> bool:
    return a is not None and math.isclose(a, b, rel_tol=rel, abs_tol=1e-14)


def half_width(differences: np.ndarray, alpha: float = 0.05) -> np.ndarray:
    """The t interval's half width for each row, by scipy."""
    n = differences.shape[1]
    return stats.t.isf(alpha / 2, n - 1) * differences.std(axis=1, ddof=1) / math.sqrt(n)


# agreement with libraries


@pytest.mark.parametrize("n", [2, 3, 5, 10, 50])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_paired_interval_and_p_agree_with_scipy_and_statsmodels(n: int, alpha: float) -> None:
    a, b = draw(n, n, 0.002)
    effect = judge("a", "b", a, b, alpha=alpha)
    x, y = np.array(list(a.values())), np.array(list(b.values()))
    result = stats.ttest_rel(x, y)
    interval = result.confidence_interval(effect.confidence)
    assert effect.paired and effect.n == n and effect.seeds == tuple(range(n))
    assert close(effect.mean, float((x - y).mean()))
    assert close(effect.low, interval.low) and close(effect.high, interval.high)
    assert close(effect.p, result.pvalue) and effect.alpha == alpha
    low, high = weightstats.DescrStatsW(x - y).tconfint_mean(effect.alpha)
    assert close(effect.low, low) and close(effect.high, high)
    assert close(effect.sd_difference, (x - y).std(ddof=1))
    assert close(effect.sd_arm, x.std(ddof=1)) and close(effect.sd_against, y.std(ddof=1))
    if n == 2:
        assert effect.correlation is None
    else:
        assert close(effect.correlation, float(np.corrcoef(x, y)[0, 1]))


@pytest.mark.parametrize(("n_a", "n_b"), [(2, 2), (3, 7), (10, 2), (40, 30)])
def test_unpaired_interval_agrees_with_welch_except_for_df(n_a: int, n_b: int) -> None:
    rng = np.random.default_rng(n_a)
    x, y = rng.normal(1.5, 0.01, n_a), rng.normal(1.49, 0.002, n_b)
    effect = judge("a", "b", runs(x), {seed + 100: value for seed, value in runs(y).items()})
    result = stats.ttest_ind(x, y, equal_var=False)
    fewest = min(n_a, n_b)
    df = fewest - 1 if fewest < 5 else stats.hmean([result.df, fewest - 1])
    half = stats.t.isf(0.025, df) * abs(x.mean() - y.mean()) / abs(result.statistic)
    assert not effect.paired and effect.seeds == () and effect.differences == () and effect.correlation is None
    assert (effect.n_arm, effect.n_against, effect.left_out) == (n_a, n_b, 0)
    assert close(effect.df, df) and close(effect.p, 2 * stats.t.sf(abs(result.statistic), df))
    assert close(effect.low, x.mean() - y.mean() - half) and close(effect.high, x.mean() - y.mean() + half)
    pooled = math.sqrt(((n_a - 1) * x.var(ddof=1) + (n_b - 1) * y.var(ddof=1)) / (n_a + n_b - 2))
    assert close(effect.sd_pooled, pooled) and close(pooled_sd([list(x), list(y)]), pooled)
    assert dataclasses.replace(judge("a", "b", runs(x), runs(y), paired=False), sentence="") == dataclasses.replace(
        effect, sentence=""
    )


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-4])
def test_power_agrees_with_the_noncentral_t_integral(n: int, alpha: float) -> None:
    df, critical = n - 1, stats.t.isf(alpha / 2, n - 1)
    for noncentrality in (0.5 * critical, critical, 1.5 * critical):

        def both_tails(u: float, d: float = noncentrality) -> float:
            scale = critical * math.sqrt(stats.chi2.ppf(u, df) / df)
            return float(stats.norm.cdf(d - scale) + stats.norm.cdf(-d - scale))

        exact, error = integrate.quad(both_tails, 0, 1, epsabs=1e-12, epsrel=1e-12, limit=500)
        assert abs(paired_t_power(noncentrality, n, alpha) - exact) < 1e-9 + error
    # the rule integrates a kink at Z = -noncentrality for n = 2, which costs h^2 / 12
    assert paired_t_power(0.0, n, alpha) == pytest.approx(alpha, rel=1e-6 if n > 2 else 1e-3)


@pytest.mark.parametrize("n", [3, 5, 10, 100])
def test_minimum_detectable_effect_agrees_with_statsmodels(n: int) -> None:
    for correlation in (0.0, 0.6, -0.3):
        effect = minimum_detectable_effect(0.005, n, correlation)
        standardized = effect / (0.005 * math.sqrt(2 * (1 - correlation)))
        reference = power.TTestPower().power(standardized, n, 0.05)
        # scipy's nctdtr, behind statsmodels, is itself wrong by up to 3e-10
        assert reference == pytest.approx(0.8, abs=2e-9)
    solved = power.TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)  # its own solver stops at about 1e-6
    assert minimum_detectable_effect(1.0, n) == pytest.approx(solved * math.sqrt(2), rel=1e-5)


# exact values


def test_seeds_needed_inverts_the_minimum_detectable_effect() -> None:
    for effect in (0.004, 0.01, 0.02, 0.1):
        n = seeds_needed(effect, 0.005)
        assert minimum_detectable_effect(0.005, n) <= effect
        assert n == 2 or minimum_detectable_effect(0.005, n - 1) > effect
        assert seeds_needed(-effect, 0.005) == n
    assert seeds_needed(0.001, 0.0) == 2 and minimum_detectable_effect(0.005, 5, correlation=1.0) == 0
    assert seeds_needed(1e300, 1e-300) == 2
    assert seeds_needed(0.0001, 0.005) == pytest.approx(2 * (1.959964 + 0.841621) ** 2 * 2500, rel=1e-3)


def test_verdicts_at_the_bounds() -> None:
    # two pairs with differences mean ∓ half / t have an interval with the wanted bounds
    def at(low: float, high: float, margin: float) -> Effect:
        step = (high - low) / 2 / stats.t.isf(0.025, 1)
        middle = (high + low) / 2
        return judge("a", "b", {0: middle - step, 1: middle + step}, {0: 0.0, 1: 0.0}, margin=margin)

    assert at(-1, 2, 1.5).verdict == "undecided"
    assert at(-1, 2, 2.1).verdict == "equivalent"
    assert at(1, 2, 1.5).verdict == "worse" and at(-2, -1, 1.5).verdict == "better"
    assert at(1, 2, 2.1).verdict == "equivalent"
    touching = at(-1, 2, 2.1)
    assert touching.low is not None and touching.high is not None
    assert at(-1, 2, touching.high * (1 + 1e-12)).verdict == "equivalent"
    assert at(-1, 2, touching.high * (1 - 1e-12)).verdict == "undecided"
    assert at(1e-12, 2, 1.5).verdict == "worse" and at(-1e-12, 2, 1.5).verdict == "undecided"
    flat = judge("a", "b", {0: 0.5, 1: 0.5}, {0: 0.0, 1: 0.0}, margin=0.5)
    assert (flat.low, flat.high, flat.verdict) == (None, None, "undecided"), "constant results have no interval"


def test_one_pair_has_no_interval() -> None:
    effect = judge("a", "b", {3: 1.0}, {3: 1.5})
    assert (effect.verdict, effect.mean, effect.low, effect.high, effect.p) == ("undecided", -0.5, None, None, None)
    unpaired = judge("a", "b", {3: 1.0}, {4: 1.5, 5: 1.6})
    assert unpaired.verdict == "undecided" and unpaired.low is None


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_constant_results_are_undecided(paired: bool, shift: float) -> None:
    """Four correct answers of four say little about a fifth: no interval, and a protocol continues."""
    a = dict.fromkeys(range(3), 0.1)  # their sum over 3 is not 0.1
    effect = judge("a", "b", {seed: value + shift for seed, value in a.items()}, a, paired=paired)
    assert (effect.low, effect.high, effect.p, effect.verdict) == (None, None, None, "undecided")
    assert effect.mean == pytest.approx(shift, abs=1e-15)


def test_results_that_are_constant_but_for_rounding_are_undecided() -> None:
    a = {0: 0.1 + 0.2, 1: 0.3}
    assert a[0] != a[1]
    effect = judge("a", "b", a, dict(a))
    assert effect.verdict == "undecided" and effect.standard_error is None


def test_pairs_that_agree_while_seeds_vary_are_equivalent() -> None:
    a = {0: 0.1, 1: 0.4, 2: 0.2}
    effect = judge("a", "b", a, dict(a))
    assert (effect.mean, effect.low, effect.high, effect.p, effect.verdict) == (0, 0, 0, 1, "equivalent")
    assert effect.correlation == pytest.approx(1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e200, 2.5])
@pytest.mark.parametrize("lower", [True, False])
def test_a_failed_run_gives_rates_instead_of_a_mean(bad: float, lower: bool) -> None:
    """Also a finite value beyond the limit; what is worse depends on the metric."""
    a, b = draw(1, 5)
    limit = 2.0 if lower else 1.0
    bad = bad if lower else 3 - bad
    effect = judge("a", "b", {**a, 2: bad, 9: bad}, b, failure=limit, lower_is_better=lower)  # seed 9 is unpaired
    assert effect.verdict is None and effect.mean is None and effect.low is None and effect.p is None
    assert (effect.failed_arm, effect.failed_against) == (2, 0)
    expected = stats.fisher_exact([[2, 4], [0, 5]]).pvalue
    assert close(effect.p_failures, expected) and close(effect.p_adjusted, expected)
    assert effect.differences[2] is None and None not in effect.differences[:2]
    assert judge("a", "b", a, {**b, 0: bad}, failure=limit, lower_is_better=lower).failed_against == 1
    json.dumps(effect.to_dict(), allow_nan=False)
    better_than_the_limit = 1.4 if lower else 1.6
    assert judge("a", "b", {**a, 2: better_than_the_limit}, b, failure=limit, lower_is_better=lower).failed_arm == 0


def test_only_shared_seeds_are_paired_and_the_rest_counted() -> None:
    a, b = draw(4, 6)
    some = judge("a", "b", {**a, 77: 9.0, 78: -9.0}, {**b, 99: 5.0})
    assert (some.left_out, some.n_arm - some.n, some.n_against - some.n) == (3, 2, 1)
    assert (some.low, some.high, some.sd_arm) == (judge("a", "b", a, b).low, judge("a", "b", a, b).high, some.sd_arm)
    assert some.n == 6 and some.sd_arm is not None and some.sd_arm < 1


def test_seeds_to_decide_is_the_smallest_sufficient_number() -> None:
    effect = judge("a", "b", {0: 0.02, 1: -0.01, 2: 0.0, 3: 0.01}, dict.fromkeys(range(4), 0.0))
    assert effect.verdict == "undecided" and effect.mean is not None and effect.sd_difference is not None

    def decides(n: int) -> bool:
        assert effect.mean is not None and effect.sd_difference is not None
        error = effect.sd_difference / math.sqrt(n)
        half = (stats.t.isf(0.025, n - 1) + stats.norm.ppf(0.8)) * error  # 4 times in 5
        return bool(half < abs(effect.mean) or abs(effect.mean) + half <= effect.margin)

    assert effect.seeds_to_decide == next(n for n in range(5, 1001) if decides(n))
    never = judge("a", "b", {0: -1.0, 1: 1.0}, {0: 0.0, 1: 0.0}, margin=0)
    assert never.seeds_to_decide == MAX_SEEDS_TO_DECIDE + 1


@pytest.mark.parametrize("shift", [0.1, 0.3, 1e-3])
def test_differences_that_vary_by_rounding_only_do_not_vary(shift: float) -> None:
    """Differences of exactly 0.1 in decimals differ by an ulp in binary: no evidence of their spread."""
    b = {seed: round(1.4 + 0.013 * seed, 4) for seed in range(8)}
    a = {seed: round(value + shift, 4) for seed, value in b.items()}
    assert len({a[seed] - b[seed] for seed in b}) > 1
    effect = judge("a", "b", a, b)
    assert effect.verdict == "undecided" and effect.p is None and effect.standard_error is None
    same = judge("a", "b", {seed: value + 2**-52 * (-1) ** seed for seed, value in b.items()}, b)
    assert same.verdict == "equivalent" and (same.low, same.high) == (0, 0)


@pytest.mark.parametrize(("n_a", "n_b"), [(2, 10), (3, 3), (3, 50), (4, 8), (5, 5), (5, 50), (8, 40), (20, 20)])
def test_unpaired_runs_with_unequal_sds_differ_by_chance_in_at_most_5_5_percent(n_a: int, n_b: int) -> None:
    """Welch and Satterthwaite's df err in 9.8% of cases with 2 against 10 runs."""
    rng = np.random.default_rng([n_a, n_b])
    for ratio in (0.25, 0.5, 1.0, 2.0, 4.0):
        x, y = ratio * rng.standard_normal((20_000, n_a)), rng.standard_normal((20_000, n_b))
        t = np.abs(stats.ttest_ind(x, y, axis=1, equal_var=False).statistic)
        sds = zip(x.std(axis=1, ddof=1), y.std(axis=1, ddof=1), strict=True)
        df = np.array([welch(float(a), n_a, float(b), n_b)[1] for a, b in sds])
        assert np.mean(2 * stats.t.sf(t, df) <= 0.05) <= 0.055 + 2 * math.sqrt(0.05 / 20_000), ratio


# numbers


def test_ties_of_a_coarse_metric_are_undecided() -> None:
    """A difference of one seed in five is missing among eight in 17% of comparisons; their values then tie as well."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        b = rng.choice([0.996, 0.998, 1.0], 8)
        a = b - np.where(rng.random(8) < 0.2, 0.1, 0)
        values = [dict(enumerate(x.tolist())) for x in (a, b)]
        assert judge("a", "b", *values, margin=0.01, lower_is_better=False).verdict != "equivalent"


def test_rounded_numbers_never_contradict_the_verdict() -> None:
    assert choose_decimals(0.0123, (0.1,)) == 4 and choose_decimals(1.2e-5, (0.1,)) == 6
    assert choose_decimals(0.01, (0.0050000001,), 0.005) == 10, "a bound beyond the margin is not rounded to the margin"
    assert choose_decimals(0.01, (0.005,), 0.005) == 4 and choose_decimals(0.01, (0.0,), 0.005) == 4
    assert choose_decimals(0.01, (1e-7,), 0.005) == 7
    assert (
        format_number(-0.0, 4) == "0.0000"
        and format_number(-0.00004, 4) == "-0.000040"
        and format_number(-1.92273e-05, 4) == "-0.000019"
        and format_number(-1.92273e-07, 4) == "-1.9e-07"
        and format_number(1.23456, 4) == "1.2346"
    )
    assert [format_percent(p, complement=True) for p in (0.05, 0.0125, 0.003125)] == ["95%", "98.75%", "99.688%"]
    assert format_percent(0.05) == "5%" and format_percent(0.1) == "10%" and format_percent(1.0) == "100%"
    assert not format_percent(0.05 / 2**40, complement=True).startswith("100")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: judge("a", "b", {}, {0: 1.0}), "arm 'a' has no runs"),
        (lambda: judge("a", "b", {0: 1.0}, {}), "arm 'b' has no runs"),
        (lambda: judge("a", "b", {0: 1.0}, {0: 1.0}, margin=-0.1), "margin=-0.1"),
        (lambda: judge("a", "b", {0: 1.0}, {0: 1.0}, margin=math.nan), "margin=nan"),
        (lambda: judge("a", "b", {0: 1.0}, {0: 1.0}, alpha=1.0), "alpha=1"),
        (lambda: judge("a", "b", {0: 1.0}, {0: 1.0}, look=0), "look=0"),
        (lambda: judge("a", "b", {0: 1.0}, {0: 1.0}, look=2), "look=2: expected 1, as no looks are planned"),
        (lambda: minimum_detectable_effect(-1.0, 5), "sd=-1"),
        (lambda: minimum_detectable_effect(1.0, 1), "n=1"),
        (lambda: minimum_detectable_effect(1.0, 5, correlation=1.5), "correlation=1.5"),
        (lambda: minimum_detectable_effect(1.0, 5, power=0.01), "power=0.01"),
        (lambda: seeds_needed(0.0, 1.0), "effect=0"),
        (lambda: seeds_needed(1e-9, 1.0), "more than 1000000 seeds"),
    ],
)
def test_invalid_input_raises_a_one_line_error(call: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_statistics_import_neither_torch_nor_scipy_stats() -> None:
    heavy = "{'torch', 'scipy.stats', 'matplotlib'}"
    modules = "partwise.comparison.stats.value_verdicts, partwise.comparison.stats.value_files"
    code = f"import sys, {modules}; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# simulation: error rates and coverage as stated, within 5 standard errors of the simulation

DRAWS = 4000


@pytest.mark.parametrize("n", [3, 5, 10])
def test_equal_arms_differ_in_five_percent_of_comparisons(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(1.47, 0.005, (2, DRAWS, n))
    effects = [judge("a", "b", runs(x), runs(y), margin=0) for x, y in zip(a, b, strict=True)]
    false = sum(effect.verdict in ("better", "worse") for effect in effects) / DRAWS
    assert abs(false - 0.05) < 5 * math.sqrt(0.05 * 0.95 / DRAWS)
    assert false == np.mean(np.abs((a - b).mean(axis=1)) > half_width(a - b)), "scipy rejects the same ones"


def test_intervals_cover_the_true_difference() -> None:
    rng = np.random.default_rng(7)
    for n, options in ((3, {}), (6, {"alpha": 0.0125}), (4, {"paired": False}), (8, {"paired": False})):
        a, b = rng.normal(0.01, 0.005, (DRAWS, n)), rng.normal(0, 0.002, (DRAWS, n))
        effects = [judge("a", "b", runs(x), runs(y), **options) for x, y in zip(a, b, strict=True)]
        missed = np.mean([not e.low <= 0.01 <= e.high for e in effects])  # type: ignore[operator]
        alpha = effects[0].alpha
        if options.get("paired", True):
            assert abs(missed - alpha) < 5 * math.sqrt(alpha / DRAWS)
        else:
            assert 0.01 < missed < alpha + 3 * math.sqrt(alpha / DRAWS), "df is chosen to hold, not to be exact"


@pytest.mark.parametrize("truth", [0.005, -0.005])
def test_arms_at_the_margin_are_rarely_equivalent(truth: float) -> None:
    """A 95% interval inside the margin is two one-sided tests (TOST) at 2.5% each (Schuirmann 1987)."""
    rng = np.random.default_rng(9)
    differences = rng.normal(truth, 0.003, (DRAWS, 10))
    zero = dict.fromkeys(range(10), 0.0)
    declared = np.mean([judge("a", "b", runs(x), zero).verdict == "equivalent" for x in differences])
    assert declared < 0.025 + 5 * math.sqrt(0.025 * 0.975 / DRAWS)
    assert declared > 0.015, "the bound is nearly attained with a margin this wide"


@pytest.mark.parametrize(("n", "correlation"), [(3, 0.0), (5, 0.6), (10, 0.0)])
def test_the_minimum_detectable_effect_is_detected_with_80_percent_power(n: int, correlation: float) -> None:
    effect = minimum_detectable_effect(0.005, n, correlation)
    cov = 0.005**2 * np.array([[1, correlation], [correlation, 1]])
    pairs = np.random.default_rng(n).multivariate_normal([1.5 + effect, 1.5], cov, (DRAWS, n))
    shown = [judge("a", "b", runs(x[:, 0]), runs(x[:, 1]), margin=0).verdict == "worse" for x in pairs]
    assert abs(np.mean(shown) - 0.8) < 0.03


# properties

numbers = st.floats(allow_nan=True, allow_infinity=True)
usual = st.integers(-(10**6), 10**6).map(lambda k: k / 2**16)
seeds = st.integers(0, 12)


def arms(values: st.SearchStrategy[float]) -> st.SearchStrategy[dict[int, float]]:
    return st.dictionaries(seeds, values, min_size=1, max_size=8)


levels = st.sampled_from([0.05, 0.01, 0.2])


@given(arms(numbers), arms(numbers), st.floats(0, 1e300), levels, st.booleans(), st.booleans())
def test_judge_handles_any_input(
    a: dict[int, float], b: dict[int, float], margin: float, alpha: float, paired: bool, lower: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        effect = judge("a", "b", a, b, margin=margin, alpha=alpha, paired=paired, lower_is_better=lower)
    plain = json.loads(json.dumps(effect.to_dict(), allow_nan=False))
    assert plain["sentence"].endswith(".") and "nan" not in plain["sentence"] and "None" not in plain["sentence"]
    assert effect.failed == (effect.p_failures is not None) and (effect.verdict is not None or effect.failed)
    if effect.low is not None and effect.high is not None and effect.mean is not None:
        assert effect.low <= effect.mean <= effect.high and effect.p is not None and 0 <= effect.p <= 1
    assert (effect.seeds_to_decide is not None) == (effect.verdict == "undecided" and effect.low is not None)


@given(arms(st.floats(-1e9, 1e9)), arms(st.floats(-1e9, 1e9)), levels, st.booleans())
def test_swapping_the_arms_negates(a: dict[int, float], b: dict[int, float], alpha: float, paired: bool) -> None:
    one, two = judge("a", "b", a, b, alpha=alpha, paired=paired), judge("b", "a", b, a, alpha=alpha, paired=paired)
    assert two.verdict == SWAPPED[one.verdict]
    assert two.p == one.p and two.correlation == one.correlation and two.seeds_to_decide == one.seeds_to_decide
    assert one.mean is not None and two.mean == -one.mean
    if one.low is not None and one.high is not None:
        assert (two.low, two.high) == (-one.high, -one.low)


@given(arms(st.floats(-1e9, 1e9)), arms(st.floats(-1e9, 1e9)), st.booleans(), st.randoms())
def test_seed_order_does_not_matter(a: dict[int, float], b: dict[int, float], paired: bool, random: object) -> None:
    items = list(a.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert judge("a", "b", dict(items), b, paired=paired) == judge("a", "b", a, b, paired=paired)


@given(arms(usual), arms(usual), st.integers(-20, 20), st.booleans())
def test_verdicts_are_invariant_to_the_unit(a: dict[int, float], b: dict[int, float], power: int, paired: bool) -> None:
    scale = 2.0**power
    one = judge("a", "b", a, b, margin=0.25, paired=paired)
    scaled = ({seed: value * scale for seed, value in arm.items()} for arm in (a, b))
    two = judge("a", "b", *scaled, margin=0.25 * scale, paired=paired)
    assert (two.verdict, two.p, two.correlation, two.seeds_to_decide) == (
        *(one.verdict, one.p, one.correlation, one.seeds_to_decide),
    )
    assert one.mean is not None and two.mean == one.mean * scale
    if one.low is not None and two.low is not None:
        assert two.low == one.low * scale


@given(arms(usual), arms(usual))
def test_higher_is_better_flips_better_and_worse_only(a: dict[int, float], b: dict[int, float]) -> None:
    one, two = judge("a", "b", a, b), judge("a", "b", a, b, lower_is_better=False)
    assert two.verdict == SWAPPED[one.verdict]
    assert (one.low, one.high, one.p, one.mean) == (two.low, two.high, two.p, two.mean)


@given(arms(usual), arms(usual), st.floats(0, 20), levels)
def test_the_verdict_follows_from_the_interval(
    a: dict[int, float], b: dict[int, float], margin: float, alpha: float
) -> None:
    effect = judge("a", "b", a, b, margin=margin, alpha=alpha)
    if effect.low is None or effect.high is None:
        assert effect.verdict == "undecided"
    elif max(abs(effect.low), abs(effect.high)) <= margin:
        assert effect.verdict == "equivalent"
    elif effect.low > 0:
        assert effect.verdict == "worse"
    elif effect.high < 0:
        assert effect.verdict == "better"
    else:
        assert effect.verdict == "undecided"
        assert effect.seeds_to_decide is not None and effect.seeds_to_decide > effect.n


@settings(max_examples=25)
@given(st.integers(2, 200), st.floats(-0.9, 0.99), st.floats(1e-6, 0.2), st.floats(0.3, 0.99))
def test_more_seeds_detect_smaller_differences(n: int, correlation: float, alpha: float, power: float) -> None:
    one = minimum_detectable_effect(1.0, n, correlation, alpha, power)
    assert 0 < minimum_detectable_effect(1.0, n + 1, correlation, alpha, power) < one
    assert minimum_detectable_effect(3.0, n, correlation, alpha, power) == pytest.approx(3 * one, rel=1e-12)
    standardized = one * math.sqrt(n / (2 * (1 - correlation)))
    assert paired_t_power(standardized, n, alpha) == pytest.approx(power, abs=1e-10)
