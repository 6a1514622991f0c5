"""The any-time t test: its closed form against integrals, bounds, monotonicity, and the error when asked after every run."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import integrate, stats

from any_time_errors import END, NOISES, PAGE, START, boundary, error_rates, ever, price, t_paths
from partwise.comparison.stats.any_time import any_time_test, critical_t, e_value, fewest_values
from partwise.comparison.stats.any_time_text import headline, notes
from partwise.comparison.stats.any_time_verdicts import Question, judge_pairs, judge_runs
from partwise.config import ConfigError

X = np.array([0.5, 1.2, -0.3, 0.8, 0.9])


@pytest.mark.parametrize("sign", [1, -1])
def test_the_closed_form_is_the_integral_over_effects_and_scales(sign: int) -> None:
    """The Bayes factor with a half-normal prior on delta and d sigma / sigma, by nested quadrature."""
    n, total, squares = len(X), sign * X.sum(), float(X @ X)

    def likelihood(log_scale: float, delta: float) -> float:
        inverse = math.exp(-log_scale)
        return math.exp(-n * log_scale - squares / 2 * inverse**2 + delta * total * inverse - n * delta**2 / 2)

    grid = np.linspace(0, 8, 161)
    over_scales = [integrate.quad(likelihood, -4, 6, args=(delta,), limit=200)[0] for delta in grid]
    expected = integrate.simpson(2 * stats.norm.pdf(grid) * over_scales, x=grid) / over_scales[0]
    test = any_time_test(list(sign * X))
    assert test.e_above == pytest.approx(expected, rel=1e-6)
    assert any_time_test(list(-sign * X)).e_below == pytest.approx(expected, rel=1e-6)


def test_bounds_are_where_the_evidence_reaches_the_level() -> None:
    test = any_time_test(list(X))
    low, high = test.bounds(0.1)
    assert low is not None and high is not None and low < X.mean() < high
    assert any_time_test(list(X), low).e_above == pytest.approx(10, rel=1e-6)
    assert any_time_test(list(X), high).e_below == pytest.approx(10, rel=1e-6)
    assert any_time_test([1.0, 2.0]).bounds(0.01) == (None, None) and critical_t(4, 0.025) is None
    assert (fewest_values(0.025), fewest_values(0.01)) == (5, 6)
    grid = [e_value(t, 7) for t in np.linspace(-30, 30, 200)]
    assert all(early < late for early, late in pairwise(grid))
    assert e_value(1e8, 5000) == 1e300 and e_value(-1e8, 5000) == 0.0  # neither overflows


def test_its_error_holds_when_asked_after_each_of_500_runs() -> None:
    """With the product's own critical values on simulated paths."""
    t = t_paths(0.0, 500, 2000, NOISES["normal"], 7)
    for alpha in (0.05, 0.025, 0.01):
        critical = np.array([critical_t(n, alpha) or math.inf for n in range(2, 501)])
        assert critical == pytest.approx(boundary(500, alpha), rel=1e-6)
        standard_error = math.sqrt(alpha * (1 - alpha) / 2000)
        assert alpha / 3 < ever(t, critical) <= alpha + 2 * standard_error
    shifted = t_paths(-0.3, 500, 2000, NOISES["normal"], 7)  # worse than the number: fewer errors
    assert ever(shifted, boundary(500, 0.025)) < ever(t, boundary(500, 0.025))


def test_the_price_and_the_page() -> None:
    """`python tests/any_time_errors.py` writes docs/any-time.md."""
    text = PAGE.read_text(encoding="utf-8").split(START)[1].split(END)[0]
    fixed, average, most = price(1.0, 0.025, 500)
    assert f"| 1 SDs | {fixed} |" in text and fixed == 10
    line = next(line for line in text.splitlines() if line.startswith("| 1 SDs")).split(" | ")
    assert average == pytest.approx(float(line[2]), abs=1.0) and most == pytest.approx(int(line[3]), abs=1)
    normal = error_rates(500, 200)[0]
    assert float(normal[1].strip("%")) < 5 and float(normal[2].strip("%")) > 15


def test_arms_and_entries_are_judged_with_holm() -> None:
    rng = np.random.default_rng(0)
    base = dict(enumerate(rng.normal(size=12)))
    values = {
        "base": base,
        "wide": {seed: value - 1 + 0.2 * rng.normal() for seed, value in base.items()},
        "same": {seed: value + 0.01 * rng.normal() for seed, value in base.items()},
        "fails": {**base, 3: math.nan},
        "late": {seed: base[seed] + rng.normal() for seed in range(3)},
    }
    question = Question(side_alpha=0.025, margin=0.05)
    wide, same, fails, late = judge_pairs(values, question)
    assert [row.outcome for row in (wide, same, fails, late)] == ["better", "equivalent", "undecided", "undecided"]
    differences = [values["wide"][seed] - base[seed] for seed in range(12)]
    t = stats.ttest_1samp(differences, 0).statistic
    assert wide.e_better == pytest.approx(e_value(-t, 12)) and wide.p_better == pytest.approx(4 / e_value(-t, 12))
    assert wide.high is not None and wide.high < 0 and late.left_out == 9
    assert "1 of 12 pairs failed" in headline(fails, question) and fails.values[3] is None and fails.p_better is None
    assert "late: fewer than 6 pairs can show nothing" in " ".join(notes([wide, same, fails, late], question))
    mirrored = {arm: {seed: -value for seed, value in runs.items()} for arm, runs in values.items()}
    higher = Question(side_alpha=0.025, margin=0.05, lower_is_better=False)
    assert [row.outcome for row in judge_pairs(mirrored, higher)] == ["better", "equivalent", "undecided", "undecided"]
    target = Question(side_alpha=0.01, target=3.0)
    entries = judge_runs({"a": [2.9, 2.91, 2.92, 2.9, 2.89, 2.9, 2.91, 2.89], "b": [3.0, 3.0], "c": [3.1]}, target)
    assert [row.outcome for row in entries] == ["reached", "undecided", "undecided"]
    assert "do not vary" in headline(entries[1], target) and "1 run is too few" in headline(entries[2], target)


def test_what_is_refused() -> None:
    for wrong in ({"side_alpha": 0.0}, {"side_alpha": 0.7}, {"side_alpha": 0.01, "margin": -1.0}):
        with pytest.raises(ConfigError):
            Question(**wrong)
    question = Question(side_alpha=0.01)
    with pytest.raises(ConfigError, match="no seed in common"):
        judge_pairs({"a": {0: 1.0}, "b": {1: 1.0}}, question)
    with pytest.raises(ConfigError, match="unknown baseline 'z'"):
        judge_pairs({"a": {0: 1.0}, "b": {1: 1.0}}, question, "z")
