"""Warnings about outlying and skewed pairs, and verdicts with a known SD."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from partwise.cli import app
from partwise.comparison.stats.intervals import judge
from partwise.comparison.stats.methods import METHODS
from partwise.comparison.stats.samples import grubbs, skewness_p, unequal_spreads_p
from partwise.comparison.stats.warnings import SKEWNESS_LEVEL
from partwise.config import ConfigError
from simulations import at_most


@pytest.mark.parametrize(("n", "critical"), [(4, 1.481), (8, 2.126), (10, 2.290), (16, 2.586)])
def test_grubbs_critical_values_are_the_published_ones(n: int, critical: float) -> None:
    """Samples whose outlier is exactly at the critical value of Grubbs & Beck 1972 have p = 5%, two-sided."""

    def with_g(g: float) -> list[float]:
        rest = np.linspace(-1, 1, n - 1)
        low, high = 0.0, 1e3
        for _ in range(200):
            x = np.append(rest, (low + high) / 2)
            low, high = ((low + high) / 2, high) if (x[-1] - x.mean()) / x.std(ddof=1) < g else (low, (low + high) / 2)
        return x.tolist()

    p = grubbs(with_g(critical))
    assert p is not None and abs(p - 0.05) < 0.002


def test_an_outlying_pair_gives_a_warning() -> None:
    values = dict(enumerate([0.001, 0.002, 0.0, -0.001, 0.0015, 0.0005, 0.2, 0.001]))
    zero = dict.fromkeys(values, 0.0)
    warning, *_ = METHODS[2].warnings([judge("odd", "base", values, zero)])
    assert "seed 6 of odd" in warning
    assert METHODS[2].warnings([judge("even", "base", {**values, 6: 0.0012}, zero)]) == ()


@pytest.mark.parametrize("side", [1, -1])
def test_grubbs_is_two_sided(side: int) -> None:
    """By simulation: at most 5% of normal samples have an outlier on either side, and about that many do."""
    x = side * np.random.default_rng(5).standard_normal((4000, 8))
    rate = np.mean([(grubbs(row.tolist()) or 1.0) <= 0.05 for row in x])
    assert 0.05 - 4 * math.sqrt(0.05 / 4000) < rate < at_most(0.05, 4000)


def test_skewness_agrees_with_scipy() -> None:
    for n in (8, 16, 40):
        x = np.random.default_rng(n).exponential(size=n)
        assert math.isclose(skewness_p(x.tolist()) or 0.0, stats.skewtest(x).pvalue, rel_tol=1e-9)
        effect = judge("a", "b", dict(enumerate(x.tolist())), dict.fromkeys(range(n), 0.0))
        assert math.isclose(effect.skewness or 0.0, stats.skew(x, bias=False), rel_tol=1e-10)
    assert skewness_p([1.0, 2.0, 4.0]) is None and skewness_p([1.0] * 9) is None


@pytest.mark.parametrize("n", [8, 12, 16, 32])
def test_normal_samples_rarely_warn_of_skewness(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((4000, n))
    warned = np.mean([(skewness_p(row.tolist()) or 1.0) < SKEWNESS_LEVEL for row in x])
    assert warned <= at_most(0.05, 4000)


def test_an_exponential_arm_over_a_quiet_baseline_mostly_warns_and_covers_as_stated() -> None:
    draws = 3000
    for n, stated in ((8, 0.89), (16, 0.91), (32, 0.93)):
        rng = np.random.default_rng(n)
        x = rng.exponential(size=(draws, n)) - 1 + 0.05 * rng.standard_normal((draws, n))
        half = stats.t.isf(0.025, n - 1) * x.std(axis=1, ddof=1) / math.sqrt(n)
        assert abs(np.mean(np.abs(x.mean(axis=1)) <= half) - stated) < 0.01 + 4 * math.sqrt(0.1 / draws)
        if n == 16:
            zero = dict.fromkeys(range(n), 0.0)
            found = [METHODS[2].warnings([judge("a", "b", dict(enumerate(row.tolist())), zero)]) for row in x[:400]]
            skewed = [any("91% with 16" in text for text in texts) for texts in found]
            assert np.mean(skewed) > 0.5


def test_a_known_sd_gives_the_pairwise_rule_of_speed_runs(tmp_path: Path) -> None:
    """A difference of 0.004 sqrt(1/n1 + 1/n2) at an SD of 0.0013 is 3.08 standard errors."""
    a, b = {0: 3.2790, 1: 3.2801, 2: 3.2785}, {7: 3.2840, 8: 3.2829}
    effect = judge("new", "old", a, b, known_sd=0.0013, margin=0.0)
    mean = sum(a.values()) / 3 - sum(b.values()) / 2
    z = mean / (0.0013 * math.sqrt(1 / 3 + 1 / 2))
    assert math.isclose(effect.p or 0.0, 2 * stats.norm.sf(abs(z)), rel_tol=1e-9)
    assert math.isclose(effect.high or 0.0, mean + stats.norm.isf(0.025) * mean / z, rel_tol=1e-9)
    file = tmp_path / "runs.csv"
    rows = [f"{seed},{arm},{value}" for arm, runs in (("old", b), ("new", a)) for seed, value in runs.items()]
    file.write_text("\n".join(["seed,arm,value", *rows]) + "\n")
    done = CliRunner().invoke(app, ["verdict", str(file), "--known-sd", "0.0013", "--margin", "0.0005"])
    assert done.exit_code == 0 and effect.verdict == "better" and "  better" in done.output
    assert f"is {abs(mean) / math.sqrt(1 / 3 + 1 / 2):.4f}, which" in done.output
    assert isinstance(CliRunner().invoke(app, ["verdict", str(file), "--known-sd", "0"]).exception, ConfigError)


@pytest.mark.parametrize("quiet", [1.0, 0.1, 3.0])
def test_the_test_of_unequal_spreads_is_that_of_no_correlation_of_differences_and_sums(quiet: float) -> None:
    rng = np.random.default_rng(4)
    a = rng.standard_normal(9)
    b = quiet * rng.standard_normal(9) + 0.3 * a
    sds, r = (float(a.std(ddof=1)), float(b.std(ddof=1))), float(np.corrcoef(a, b)[0, 1])
    expected = stats.pearsonr(a - b, a + b).pvalue
    assert unequal_spreads_p(sds[0], 9, sds[1], 9, r) == pytest.approx(expected, rel=1e-9)
    by_f = 2 * min(stats.f.cdf((sds[0] / sds[1]) ** 2, 8, 8), stats.f.sf((sds[0] / sds[1]) ** 2, 8, 8))
    assert unequal_spreads_p(sds[0], 9, sds[1], 9, None) == pytest.approx(by_f, rel=1e-9)
    assert unequal_spreads_p(1.0, 9, 0.0, 9, None) == 0 and unequal_spreads_p(0.0, 9, 0.0, 9, None) is None


def test_false_claims_of_an_exponential_arm_over_a_quiet_baseline_mostly_warn_of_unequal_spreads() -> None:
    """And claims of arms with equal noise rarely do."""
    rng, named = np.random.default_rng(6), "vary more than those of base"
    claims = warned = false_alarms = 0
    for _ in range(1500):
        arm, base = rng.standard_exponential(8) - 1, rng.standard_normal(8) / 10
        effect = judge("arm", "base", dict(enumerate(arm.tolist())), dict(enumerate(base.tolist())), margin=0.0)
        assert not any(named in text for text in METHODS[1].warnings([effect]))
        claims += effect.verdict in ("better", "worse")
        warned += any(named in text for text in METHODS[2].warnings([effect]))
        equal = judge(
            "arm", "base", dict(enumerate(rng.normal(3, 1, 8))), dict(enumerate(rng.normal(0, 1, 8))), margin=0.0
        )
        false_alarms += any("vary more" in text for text in METHODS[2].warnings([equal]))
    assert claims > 100 and warned > 0.8 * claims
    assert false_alarms <= at_most(0.05, 1500) * 1500
