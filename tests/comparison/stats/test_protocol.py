"""Decision rules: looks, several arms, stopping, and their error rates, against libraries and by simulation."""

import math
from itertools import pairwise

import numpy as np
import pandas
import pytest
import statsmodels.formula.api as smf
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from partwise.comparison.stats.group_sequential import (
    nominal_levels,
    sequential_p,
    spending_function,
    transition_matrix,
)
from partwise.comparison.stats.intervals import holm, judge
from partwise.comparison.stats.power import (
    default_looks,
    equivalence_power_over_looks,
    minimum_detectable_effect,
    minimum_detectable_effect_over_looks,
    power_over_looks,
)
from partwise.comparison.stats.protocol import Claim, Rules, is_open, residual_sd
from partwise.config import ConfigError
from simulations import SD, at_least, at_most, simulate

some_looks = st.lists(st.integers(2, 30), min_size=1, max_size=4, unique=True).map(lambda x: tuple(sorted(x)))


def t_tests(x: np.ndarray, n: int) -> np.ndarray:
    """Two-sided p-values of the first n of each row."""
    return np.asarray(stats.ttest_1samp(x[:, :n], 0.0, axis=1).pvalue)


# looks


@pytest.mark.parametrize("looks", [(4, 8, 16), (2, 3, 4), (5, 6, 20), (4, 16), (4, 6, 8, 10, 12, 14, 16)])
def test_looks_spend_the_planned_alpha(looks: tuple[int, ...]) -> None:
    """Cumulative rejections of scipy's t test on normal values, to 5 standard errors."""
    draws = 100_000
    x = np.random.default_rng(looks).standard_normal((draws, looks[-1]))
    rejected = np.zeros(draws, bool)
    for n, level, budget in zip(looks, nominal_levels(looks), spending_function(looks), strict=True):
        rejected |= t_tests(x, n) <= level
        assert abs(rejected.mean() - budget) < 5 * math.sqrt(budget / draws)


def test_levels_approach_those_of_a_normal_process() -> None:
    """With hundreds of pairs t is nearly normal; the normal levels follow from the bivariate normal distribution."""
    looks, (first, second) = (500, 1000), nominal_levels((500, 1000))
    assert math.isclose(first, 0.025, rel_tol=1e-9)
    both = stats.multivariate_normal(cov=[[1, math.sqrt(0.5)], [math.sqrt(0.5), 1]])
    a, b = -special.ndtri(first / 2), -special.ndtri(second / 2)
    inside = both.cdf([a, b], lower_limit=[-a, -b])
    assert abs(1 - inside - 0.05) < 2e-4
    assert spending_function(looks) == (0.025, 0.05)


@settings(max_examples=12, deadline=None)
@given(st.integers(2, 12), st.integers(1, 20))
def test_the_p_value_of_a_further_look_is_uniform(n: int, more: int) -> None:
    """Averaged over the first look's p-value, the next look's p-value is uniform."""
    from partwise.comparison.stats.group_sequential import BIN_EDGES

    chain = transition_matrix(n, n + more)
    assert np.allclose(chain.sum(axis=1), 1, atol=1e-12) and (chain > -1e-12).all()
    after = np.cumsum(np.diff(BIN_EDGES, prepend=0.0) @ chain)
    assert np.abs(after - BIN_EDGES).max() < 2e-3


@settings(max_examples=12, deadline=None)
@given(some_looks, st.data())
def test_sequential_p_and_levels_agree(looks: tuple[int, ...], data: st.DataObject) -> None:
    p = [data.draw(st.floats(1e-6, 1.0)) for _ in looks[: data.draw(st.integers(1, len(looks)))]]
    alpha = data.draw(st.sampled_from([0.01, 0.05, 0.2]))
    found = sequential_p(p, looks)
    ratio = min(value / level for value, level in zip(p, nominal_levels(looks, alpha), strict=False))
    if not 0.99 < ratio < 1.01:  # the table is interpolated
        assert (found <= alpha) == (ratio <= 1)
    assert all(
        late <= early + 1e-15 for early, late in pairwise(sequential_p(p[:k], looks) for k in range(1, len(p) + 1))
    )
    if len(looks) == 1:
        assert found == p[0]


def test_sequential_p_is_a_p_value() -> None:
    looks, draws = (4, 8, 16), 20_000
    x = np.random.default_rng(3).standard_normal((draws, looks[-1]))
    p = np.stack([t_tests(x, n) for n in looks], axis=1)
    found = np.array([sequential_p(row, looks) for row in p])
    for level in (0.001, 0.01, 0.05, 0.3):
        assert abs((found <= level).mean() - level) < 5 * math.sqrt(level / draws)


@pytest.mark.parametrize(
    ("looks", "message"), [((), "looks="), ((1, 4), "looks=1,4"), ((4, 4), "looks=4,4"), ((8, 4), "looks=8,4")]
)
def test_invalid_looks_raise(looks: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nominal_levels(looks)


def test_default_looks() -> None:
    assert (
        default_looks(16) == (4, 8, 16)
        and default_looks(5) == (5,)
        and default_looks(10) == (5, 10)
        and default_looks(64) == (16, 32, 64)
    )


# several arms


def test_residual_variance_agrees_with_a_linear_model() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, 6)) + rng.normal(size=6)
    values = {f"arm{i}": dict(enumerate(row.tolist())) for i, row in enumerate(x)}
    rows = [{"y": y, "arm": arm, "seed": seed} for arm, runs in values.items() for seed, y in runs.items()]
    fit = smf.ols("y ~ C(arm) + C(seed)", pandas.DataFrame(rows)).fit()
    claims = [Claim(f"arm{i}", "arm0") for i in (1, 2, 3)]
    effects = Rules(looks=(6,), variance="residual", margin=1e-9).judge(values, claims)
    low_high = fit.conf_int()
    for effect in effects:
        name = f"C(arm)[T.{effect.arm}]"
        assert math.isclose(effect.mean or 0.0, fit.params[name], rel_tol=1e-10)
        assert np.allclose([effect.low, effect.high], low_high.loc[name], rtol=1e-10)
        assert math.isclose(effect.p or 0.0, fit.pvalues[name], rel_tol=1e-9)
        assert effect.df == 3 * 5


def test_both_variances_agree_for_two_arms() -> None:
    rng = np.random.default_rng(6)
    values = {name: dict(enumerate(rng.normal(size=8).tolist())) for name in "ab"}
    residual = residual_sd(values)
    assert residual is not None
    effect = judge("b", "a", values["b"], values["a"])
    assert math.isclose(residual.sd, effect.sd_difference or 0.0, rel_tol=1e-12) and residual.df == 7


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from(["pair", "residual"]))
def test_verdicts_follow_from_p_over_looks_and_arms(seed: int, arms: int, variance: str) -> None:
    """Recompute p over looks, Holm's adjustment and each verdict."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.005, (arms + 1, 16)) + rng.normal(0, 0.01, (arms + 1, 1)) * (rng.random() < 0.5)
    values = {f"a{i}": dict(enumerate(row.tolist())) for i, row in enumerate(x)}
    rules = Rules(variance=variance, margin=0.002)  # type: ignore[arg-type]
    claims = [Claim(f"a{i}", "a0") for i in range(1, arms + 1)]
    effects = rules.judge(values, claims)
    assert [effect.arm for effect in effects] == [claim.arm for claim in claims]
    assert not any(map(is_open, effects))
    adjusted = holm([effect.p_looks or 0.0 for effect in effects])
    for effect, p in zip(effects, adjusted, strict=True):
        assert effect.low is not None and effect.high is not None
        assert effect.p_adjusted == p and effect.n_comparisons == arms
        assert effect.n == rules.looks[effect.look - 1] and len(effect.differences) == effect.n
        excludes = effect.low > 0 or effect.high < 0
        inside = effect.low >= -0.002 and effect.high <= 0.002
        if effect.verdict in ("better", "worse"):
            assert excludes and not inside and (arms == 1 or p <= 0.05)
            assert (effect.verdict == "better") == (effect.high < 0)
        elif effect.verdict == "equivalent":
            assert inside
        else:
            assert effect.look == 3 and not inside and (not excludes or p > 0.05)


def test_one_of_many_arms_that_differs_by_chance_is_undecided() -> None:
    """One of ten arms has an interval that excludes 0, at p = 0.02: enough alone, but not among ten."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.005, 8)
    noise = (noise - noise.mean()) / noise.std(ddof=1)
    values = {"a": dict.fromkeys(range(8), 0.0)}
    for i in range(10):
        shift = special.stdtrit(7, 1 - 0.01) / math.sqrt(8) if i == 3 else 0.1 * (-1) ** i
        values[f"arm {i}"] = dict(enumerate((noise + shift).tolist()))
    claims = [Claim(f"arm {i}", "a") for i in range(10)]
    rules = Rules(looks=(8,), margin=1e-9)
    effect = rules.judge(values, claims)[3]
    assert effect.low is not None and effect.low > 0 and math.isclose(effect.p or 0.0, 0.02, rel_tol=1e-6)
    assert effect.verdict == "undecided" and math.isclose(effect.p_adjusted or 0.0, 0.2, rel_tol=1e-6)
    assert (
        "excludes zero, but with 10 comparisons that is too likely by chance: the adjusted p is 0.2." in effect.sentence
    )
    assert rules.judge(values, claims[3:4])[0].verdict == "worse"


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_values_after_a_claim_closed_are_not_read(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 0.005, (2, 16))
    x[1] += rng.choice([0.0, 0.01])
    values = {f"a{i}": dict(enumerate(row.tolist())) for i, row in enumerate(x)}
    claims, rules = [Claim("a1", "a0")], Rules()
    (effect,) = rules.judge(values, claims)
    for runs in values.values():
        for later in range(effect.n, 16):
            runs[later] = math.nan
    assert rules.judge(values, claims) == [effect]
    cut = {arm: {seed: value for seed, value in runs.items() if seed < effect.n} for arm, runs in values.items()}
    assert rules.judge(cut, claims) == [effect]
    assert rules.judge({arm: dict(list(runs.items())[:3]) for arm, runs in values.items()}, claims) == []


def test_a_diverged_run_closes_only_its_own_claim() -> None:
    rng = np.random.default_rng(1)
    values = {name: dict(enumerate(rng.normal(0, 0.005, 16).tolist())) for name in "abc"}
    values["b"][2] = math.inf
    diverged, other = Rules().judge(values, [Claim("b", "a"), Claim("c", "a")])
    assert diverged.verdict is None and diverged.n == 4 and "diverged" in diverged.sentence
    assert other.verdict is not None and other.n_comparisons == 2


def test_controls_are_not_counted_as_comparisons() -> None:
    rng = np.random.default_rng(2)
    values = {name: dict(enumerate(rng.normal(0, 0.005, 16).tolist())) for name in "abcd"}
    claims = [Claim("b", "a"), Claim("c", "a", "negative"), Claim("d", "a", "positive")]
    claim, negative, positive = Rules().judge(values, claims)
    assert {effect.n_comparisons for effect in (claim, negative, positive)} == {1}
    assert claim == Rules().judge(values, claims[:1])[0]


# simulation: error rates as stated, within the simulation's error (exceeded by chance once in 100,000)


@pytest.mark.parametrize(
    ("looks", "arms", "variance", "draws"),
    [
        ((4, 8, 16), 1, "pair", 1500),
        ((4, 8, 16), 3, "pair", 500),
        ((4, 8, 16), 10, "pair", 200),
        ((4, 8, 16), 10, "residual", 200),
        ((4,), 5, "residual", 400),
        ((16,), 2, "pair", 500),
    ],
)
def test_equal_arms_rarely_differ(looks: tuple[int, ...], arms: int, variance: str, draws: int) -> None:
    rules = Rules(margin=SD, looks=looks, variance=variance)  # type: ignore[arg-type]
    found = simulate(rules, arms, draws=draws)
    assert found.false <= at_most(0.05, draws)
    assert found.covered >= at_least(0.95, draws)


def test_the_false_claim_rate_is_close_to_five_percent() -> None:
    """Rules that never claim a difference would pass the other tests."""
    found = simulate(Rules(margin=1e-9), draws=1500)
    assert at_least(0.05, 1500) <= found.false <= at_most(0.05, 1500)


@pytest.mark.parametrize("looks", [(4, 8, 16), (5,)])
def test_simulated_power_agrees_with_power_over_looks(looks: tuple[int, ...]) -> None:
    effect = minimum_detectable_effect_over_looks(SD, looks)
    expected = power_over_looks(effect, SD, looks)
    assert abs(expected - 0.8) < 0.003
    found = simulate(Rules(margin=1e-9, looks=looks), truth=effect, draws=1500)
    assert at_least(expected - 0.005, 1500) <= found.shown <= at_most(expected + 0.005, 1500)


def test_power_of_a_single_look_agrees_with_the_noncentral_t() -> None:
    effect = minimum_detectable_effect(SD, 16)
    assert minimum_detectable_effect_over_looks(SD, (16,)) == effect
    assert abs(power_over_looks(effect, SD, (16,)) - 0.8) < 0.005


def test_arms_at_the_margin_are_rarely_equivalent() -> None:
    rules = Rules(margin=1.5 * SD)
    edge, equal = (simulate(rules, truth=truth, draws=1000) for truth in (1.5 * SD, 0.0))
    assert edge.equivalent <= at_most(0.025, 1000)
    expected = equivalence_power_over_looks(1.5 * SD, SD, rules.looks)
    assert at_least(expected - 0.005, 1000) <= equal.equivalent <= at_most(expected + 0.005, 1000)


def test_an_arm_that_sometimes_fails_is_rarely_equivalent() -> None:
    """Exact match: the baseline always succeeds, the arm in four of five seeds; a true difference of 0.18."""
    rng, calls = np.random.default_rng(11), 0
    for _ in range(400):
        arm = np.where(rng.random(16) < 0.2, 0.1, 1.0)
        values = {"base": dict.fromkeys(range(16), 1.0), "arm": dict(enumerate(arm.tolist()))}
        (effect,) = Rules(lower_is_better=False).judge(values, [Claim("arm", "base")])
        calls += effect.verdict == "equivalent"
    assert calls == 0


def test_a_negative_control_does_not_narrow_the_intervals_of_claims() -> None:
    """An A/A arm shares most of the baseline's noise: including it in the residual would narrow every interval."""
    rng, false = np.random.default_rng(12), 0
    claims = [Claim("arm", "base"), Claim("null", "base", "negative")]
    rules = Rules(looks=(16,), variance="residual", margin=1e-9)
    for _ in range(600):
        base, other, arm = rng.normal(0, 0.005, (3, 16))
        null = 0.9 * base + math.sqrt(1 - 0.9**2) * other
        values = {name: dict(enumerate(x.tolist())) for name, x in (("base", base), ("arm", arm), ("null", null))}
        false += rules.judge(values, claims)[0].verdict in ("better", "worse")
    assert false / 600 <= at_most(0.05, 600)


@pytest.mark.parametrize("noise", ["heavy-tailed", "skewed"])
def test_coverage_is_robust_to_non_normal_noise(noise: str) -> None:
    """docs/statistics.md has the full simulation."""
    found = simulate(Rules(margin=SD), noise=noise, draws=800)
    assert found.covered >= at_least(0.92, 800)
