"""The split of variance equals an independent analysis of variance, and its intervals cover."""

import math

import numpy as np
import pytest

from partwise.comparison.stats.variance_split import split_variance
from partwise.config import ConfigError


def simulate(rng: np.random.Generator, rows: int, columns: int, init: float, order: float, rest: float) -> np.ndarray:
    effects = init * rng.normal(size=(rows, 1)) + order * rng.normal(size=(1, columns))
    return 2.0 + effects + rest * rng.normal(size=(rows, columns))


def test_mean_squares_equal_those_of_statsmodels() -> None:
    import pandas as pd
    import statsmodels.api as sm
    from statsmodels.formula.api import ols

    table = simulate(np.random.default_rng(0), 5, 4, 0.02, 0.01, 0.005)
    frame = pd.DataFrame([(i, j, table[i, j]) for i in range(5) for j in range(4)], columns=["a", "b", "y"])
    anova = sm.stats.anova_lm(ols("y ~ C(a) + C(b)", frame).fit())
    ms = anova["mean_sq"]
    split = split_variance(table.tolist())
    assert split.rest.sd**2 == pytest.approx(ms["Residual"], rel=1e-10)
    assert split.init.sd**2 == pytest.approx((ms["C(a)"] - ms["Residual"]) / 4, rel=1e-10)
    assert split.order.sd**2 == pytest.approx((ms["C(b)"] - ms["Residual"]) / 5, rel=1e-10)


def test_the_transposed_table_swaps_the_sources() -> None:
    table = simulate(np.random.default_rng(1), 3, 6, 0.02, 0.01, 0.005)
    one, two = split_variance(table.tolist()), split_variance(table.T.tolist())
    assert (one.init, one.order) == (two.order, two.init) and one.rest == two.rest


def test_a_source_without_effect_gets_zero() -> None:
    rng = np.random.default_rng(2)
    found = [split_variance(simulate(rng, 4, 4, 0.0, 0.0, 0.01).tolist()) for _ in range(200)]
    assert all(split.init.low <= split.init.sd for split in found)
    covered = sum(split.init.low == 0 for split in found)
    assert covered >= 0.93 * len(found)


@pytest.mark.parametrize("sds", [(0.02, 0.01, 0.005), (0.005, 0.02, 0.01), (0.01, 0.01, 0.01)])
def test_intervals_cover_the_true_components(sds: tuple[float, float, float]) -> None:
    rng, draws = np.random.default_rng(3), 1000
    covered = np.zeros(3)
    for _ in range(draws):
        split = split_variance(simulate(rng, 6, 5, *sds).tolist())
        for index, part in enumerate((split.init, split.order, split.rest)):
            covered[index] += part.low <= sds[index] <= part.high
    assert (covered / draws >= 0.93).all(), covered / draws


def test_failed_runs_and_too_few_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="a run failed"):
        split_variance([[1.0, math.nan], [1.0, 2.0]])
    with pytest.raises(ConfigError, match="1 x 2 runs"):
        split_variance([[1.0, 2.0]])
