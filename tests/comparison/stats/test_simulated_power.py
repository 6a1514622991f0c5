"""Simulated power against comparisons simulated here, judged by `Rules.judge` or by tests written apart from it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.simulated_power import (
    EQUIVALENT,
    HIGHER,
    LOWER,
    UNDECIDED,
    Design,
    _samples,
    decide_all,
    detectable_effect,
    one_real_claim,
    seeds_for_effect,
    seeds_for_equivalence,
    verdict_rates,
)
from partwise.config import ConfigError
from simulations import at_most

CODES = {"better": LOWER, "worse": HIGHER, "equivalent": EQUIVALENT, "undecided": UNDECIDED}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 5),
    st.sampled_from([(4, 8, 16), (5,), (3, 6), (2, 4, 6, 8)]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_decisions_are_those_of_the_rules(seed: int, claims: int, looks: tuple[int, ...], margin: float) -> None:
    """Draw by draw: verdict and number of pairs of every claim."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((claims + 1, looks[-1])) + rng.standard_normal(looks[-1])
    x[1:] += rng.choice([0.0, 0.5, -1.5, 3.0], (claims, 1))
    values = {f"a{i}": dict(enumerate(row.tolist())) for i, row in enumerate(x)}
    rules = Rules(margin=margin, looks=looks)
    effects = rules.judge(values, [Claim(f"a{i}", "a0") for i in range(1, claims + 1)])
    d = x[1:] - x[0]
    samples = [(d[None, :, :n].mean(-1), d[None, :, :n].std(-1, ddof=1) / math.sqrt(n)) for n in looks]
    verdicts, pairs = decide_all(samples, Design(looks, claims, margin), margin)
    assert verdicts[0].tolist() == [CODES[str(effect.verdict)] for effect in effects]
    assert pairs[0].tolist() == [effect.n for effect in effects]


def holm_by_definition(p: np.ndarray, alpha: float) -> np.ndarray:
    """Holm's step-down method on each row."""
    order = np.argsort(p, axis=1)
    passed = np.take_along_axis(p, order, axis=1) <= alpha / np.arange(p.shape[1], 0, -1)
    rejected = np.zeros(p.shape, bool)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(passed, axis=1), axis=1)
    return rejected


def simulate(
    effects: list[float], sd: float, n: int, margin: float, draws: int = 6000
) -> tuple[np.ndarray, np.ndarray]:
    """P(lower) and P(equivalent) of every claim at one look, from single runs and scipy's t tests."""
    rng = np.random.default_rng(7)
    runs = rng.normal(0, sd / math.sqrt(2), (draws, len(effects) + 1, n)) + rng.normal(0, 3 * sd, (draws, 1, n))
    d = runs[:, 1:] - runs[:, :1] + np.array(effects)[:, None]
    p = stats.ttest_1samp(d, 0.0, axis=-1).pvalue
    greater = stats.ttest_1samp(d, -margin, axis=-1, alternative="greater").pvalue
    less = stats.ttest_1samp(d, margin, axis=-1, alternative="less").pvalue
    agrees = holm_by_definition(2 * np.maximum(greater, less), 0.05)
    lower = holm_by_definition(p, 0.05) & (d.mean(-1) < 0) & ~agrees
    return lower.mean(0), agrees.mean(0)


@pytest.mark.parametrize("effects", [[-0.008], [-0.008, 0.0, 0.0], [-0.008] + 9 * [0.0], [-0.004, 0.004], [0.0, 0.0]])
@pytest.mark.parametrize("margin", [0.0, 0.005])
def test_rates_agree_with_an_independent_simulation(effects: list[float], margin: float) -> None:
    lower, equivalent = simulate(effects, 0.0075, 16, margin)
    rates = verdict_rates(Design((16,), len(effects), margin), effects, 0.0075)
    for rate, low, agrees in zip(rates, lower, equivalent, strict=True):
        assert abs(rate.better - low) < 0.03 and abs(rate.equivalent - agrees) < 0.03
        assert math.isclose(rate.better + rate.worse + rate.equivalent + rate.undecided, 1, abs_tol=1e-12)


@pytest.mark.parametrize("claims", [1, 3, 10])
def test_the_minimum_detectable_effect_has_its_power_among_several_claims(claims: int) -> None:
    effect = detectable_effect(Design((12,), claims, 0.002), 0.01)
    lower, _ = simulate([-effect, *[0.0] * (claims - 1)], 0.01, 12, 0.002)
    assert abs(lower[0] - 0.8) < 0.03


def test_power_over_looks_agrees_with_whole_comparisons() -> None:
    """Three arms, one of them real, judged by the rules themselves at three looks."""
    rng, rules, draws = np.random.default_rng(3), Rules(margin=0.004), 600
    effects, sd = np.array([-0.008, 0.0, 0.0]), 0.007
    claims, won, pairs, agrees = [Claim(f"a{i}", "a0") for i in (1, 2, 3)], 0, 0, 0
    for _ in range(draws):
        x = rng.normal(0, sd / math.sqrt(2), (4, 16))
        x[1:] += effects[:, None]
        found = rules.judge({f"a{i}": dict(enumerate(row.tolist())) for i, row in enumerate(x)}, claims)
        won += found[0].verdict == "better"
        pairs += found[0].n
        agrees += found[1].verdict == "equivalent"
    first, second, _ = verdict_rates(Design((4, 8, 16), 3, 0.004), effects.tolist(), sd)
    assert abs(first.better - won / draws) < 4.5 * math.sqrt(0.25 / draws)
    assert abs(second.equivalent - agrees / draws) < 4.5 * math.sqrt(0.25 / draws)
    assert abs(first.pairs - pairs / draws) < 1


def test_an_effect_below_the_margin_is_called_equivalent() -> None:
    rates = one_real_claim(Design((64,), 1, 0.005), 0.002, 0.005)
    assert rates.equivalent > 0.9 and rates.better < 0.1


def test_seeds_for_an_effect_and_for_equivalence_are_the_fewest() -> None:
    design = Design((2,), 3, 0.004)
    n = seeds_for_effect(0.009, 0.01, design)
    for seeds, enough in ((n, True), (n - 1, False)):
        assert (one_real_claim(Design((seeds,), 3, 0.004), 0.009, 0.01).better >= 0.8) == enough
    lower, _ = simulate([-0.009, 0, 0], 0.01, n, 0.004)
    assert abs(lower[0] - 0.8) < 0.05
    n = seeds_for_equivalence(0.01, design)
    _, agrees = simulate([0, 0, 0], 0.01, n, 0.004, draws=2000)
    assert abs(agrees[0] - 0.8) < 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Design((4,), 0), "claims=0"),
        (lambda: Design((4,), 1, -1.0), "margin=-1"),
        (lambda: Design((4,), 1, 0.0, 0.9), r"alpha=0\.9"),
        (lambda: Design((1,)), "looks=1"),
        (lambda: Design((4,), correlation=1.0), "correlation=1"),
        (lambda: verdict_rates(Design((4,), 2), [0.0], 1.0), r"effects=\[0\.0\]"),
        (lambda: detectable_effect(Design((4,)), 0.0), "sd=0"),
        (lambda: seeds_for_effect(0.0, 1.0, Design((4,))), "effect=0"),
        (lambda: seeds_for_effect(1e-9, 1.0, Design((4,))), "more than 100,000 seeds"),
        (lambda: seeds_for_equivalence(1.0, Design((4,))), "margin=0"),
    ],
)
def test_invalid_values_raise(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("noisy", [None, 0, 1], ids=["equal", "noisy baseline", "one noisy arm"])
def test_of_ten_equal_arms_any_differs_in_five_percent(noisy: int | None) -> None:
    """With enough comparisons to see 6%, by the vectorized rules, which equal those that judge."""
    draws, looks, rng = 20_000, (4, 8, 16), np.random.default_rng(3)
    runs = rng.standard_normal((draws, looks[-1], 11))
    if noisy is not None:
        runs[..., noisy] *= 4
    differences = runs[..., 1:] - runs[..., :1]
    samples = [(x.mean(1), x.std(1, ddof=1) / math.sqrt(n)) for n in looks for x in [differences[:, :n]]]
    verdicts, _ = decide_all(samples, Design(looks, 10, margin=1e-9), 1e-9)
    rate = float(np.mean(((verdicts == LOWER) | (verdicts == HIGHER)).any(axis=1)))
    assert rate <= at_most(0.05, draws) < 0.06
    assert rate > 0.005


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_simulated_claims_are_correlated_as_the_design_says(correlation: float) -> None:
    """Means by r and variances by r^2, as those of differences from one baseline."""
    for mean, error in _samples((4, 9), 2, correlation):
        assert abs(np.corrcoef(mean.T)[0, 1] - correlation) < 0.02
        assert abs(np.corrcoef((error**2).T)[0, 1] - correlation**2) < 0.03


@pytest.mark.parametrize("effect", [0.002, -0.002])
def test_an_effect_far_below_the_margin_is_refused_with_the_reason(effect: float) -> None:
    with pytest.raises(ConfigError, match=r"below the margin of 0\.005, .* called equivalent, not better"):
        seeds_for_effect(effect, 0.01, Design((4,), margin=0.005))


def test_an_effect_little_below_the_margin_has_its_seeds() -> None:
    """An independent simulation gives 80.0% at 52 seeds."""
    assert 51 <= seeds_for_effect(0.004, 0.01, Design((4,), margin=0.005, method=2)) <= 54


@pytest.mark.parametrize(("margin", "seeds"), [(0.5, (44, 36)), (1.0, (13, 11))])
def test_seeds_for_equivalence_follow_from_the_method(margin: float, seeds: tuple[int, int]) -> None:
    """Fewer from method 3 on, by the exact power of two one-sided tests over the distribution of the SD; not of several."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    for method, level, expected in ((2, 0.975, seeds[0]), (3, 0.95, seeds[1])):
        sd = np.sqrt(stats.chi2.ppf(quantiles, expected - 1) / (expected - 1))
        room = margin * math.sqrt(expected) - stats.t.ppf(level, expected - 1) * sd
        power = np.maximum(0, 2 * stats.norm.cdf(room) - 1).mean()
        found = one_real_claim(Design((expected,), margin=margin, method=method), 0.0, 1.0).equivalent
        assert found == pytest.approx(power, abs=0.01)
        assert abs(seeds_for_equivalence(1.0, Design((2,), margin=margin, method=method)) - expected) <= 1
    three = [Design((4, 8), 3, margin, method=method) for method in (2, 3)]
    assert one_real_claim(three[0], 0.0, 1.0) == one_real_claim(three[1], 0.0, 1.0)
    of_three = [Design((16,), 1, margin, method=method, family=3) for method in (2, 3)]
    assert one_real_claim(of_three[0], 0.0, 1.0) == one_real_claim(of_three[1], 0.0, 1.0)
