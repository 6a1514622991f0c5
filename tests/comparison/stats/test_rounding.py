"""Values that are rounded to a unit larger than the margin, which equal results cannot tell apart."""

import numpy as np
import pytest

from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.rounding import rounding_unit


def judged(arm: list[float], baseline: list[float], margin: float, **options: object) -> Effect:
    rules = Rules(margin=margin, looks=(), metric="loss", unit="", **options)
    (effect,) = rules.judge({"a": dict(enumerate(arm)), "b": dict(enumerate(baseline))}, [Claim("a", "b")])
    return effect


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ([1.43, 1.47], 0.01),
        ([1.4, 1.475, 2.0], 0.001),
        ([200.0, 1300.0], 100.0),
        ([1e-5, 3.2e-4], 1e-5),
        ([0.0, 1.5], 0.1),
        ([k / 300 for k in (7, 11, 290)], 1 / 300),
        ([2 / 3, 1 / 4], 1 / 12),
        ([0.1 + 0.2, 1.4], 0.0),
        ([float(x) for x in np.random.default_rng(0).uniform(0, 1, 3)], 0.0),
        ([float(x) for x in np.random.default_rng(0).uniform(1, 2, 2).astype(np.float32)], 0.0),
    ],
)
def test_the_unit_is_the_largest_of_which_all_values_are_multiples(values: list[float], unit: float) -> None:
    assert rounding_unit(values) == pytest.approx(unit, rel=1e-12)


def test_equal_values_that_are_rounded_beyond_the_margin_are_undecided() -> None:
    coarse = judged([1.43, 1.47], [1.43, 1.47], 0.005)
    assert coarse.verdict == "undecided" and coarse.low is None and coarse.p is None and coarse.rounding_unit == 0.01
    accuracy = judged([7 / 30, 11 / 30], [7 / 30, 11 / 30], 0.02)
    assert accuracy.verdict == "undecided" and accuracy.rounding_unit == pytest.approx(1 / 30)
    assert judged([1.43, 1.47], [1.43, 1.47], 0.01).verdict == "equivalent"  # they differ by at most the unit
    exact = [1.4312345678901234, 1.4798765432109876]
    for margin in (0.005, 1e-9):
        assert judged(exact, exact, margin).verdict == "equivalent"
    assert judged([1.43, 1.47], [1.43, 1.47], 0.005, method=1).verdict == "equivalent"
    assert judged([1.43, 1.48], [1.43, 1.47], 0.005).rounding_unit is None


def test_arms_at_the_margin_are_not_equivalent_because_their_values_are_rounded() -> None:
    """2 seeds, a unit of 2 margins, and differences of exactly the margin: equal values are frequent."""
    rng, margin, false = np.random.default_rng(0), 0.005, {1: 0, 2: 0}
    for _ in range(400):
        baseline = 1.5 + 0.02 * rng.standard_normal(2)
        a, b = (np.round(x, 2).tolist() for x in (baseline + margin, baseline))
        for method in false:
            false[method] += judged(a, b, margin, method=method).verdict == "equivalent"
    assert false[1] > 0.13 * 400 and false[2] == 0
