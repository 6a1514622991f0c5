"""The rule of a search: screens, tests, failures, promotions; the values of a t test by scipy."""

import math
from collections.abc import Sequence

import pytest
from scipy import stats

from partwise.comparison.search.rule import Design, Pool, Search, confirm, next_action
from partwise.comparison.stats.online import online_level
from partwise.config import ConfigError

POOL = Pool((1.02, 0.98, 1.01, 0.99, 1.0, 1.03, 0.97, 1.0))
DESIGN = Design(looks=(2, 4), shares=(0.4, 0.6))


def test_a_candidate_goes_from_the_screen_to_its_test_and_is_kept() -> None:
    assert next_action([], POOL, None, DESIGN).runs == 1
    screened = next_action([0.9], POOL, None, DESIGN)
    assert (screened.kind, screened.reason, screened.tested, screened.runs) == ("run", "test", True, 1)
    for count in (1, 2):
        action = next_action([0.9, *[0.92, 0.93][:count]], POOL, 0.01, DESIGN)
    expected = stats.ttest_ind([0.92, 0.93], POOL.values, alternative="less")
    assert action.kind == "keep"  # the screening run is not among the tested ones
    assert action.p == pytest.approx(expected.pvalue, rel=1e-9) and action.level == pytest.approx(0.004)
    assert action.estimate == pytest.approx(0.925 - 1.0)
    interval = stats.ttest_ind([0.92, 0.93], POOL.values).confidence_interval(0.95)
    assert (action.low, action.high) == pytest.approx(tuple(interval), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "kind", "reason"),
    [
        ([1.05], "discard", "screen"),
        ([0.95, 1.02], "discard", "hopeless"),
        ([0.95, 0.985], "run", "test"),
        ([0.95, 0.985, 0.99, 0.98, 0.985], "undecided", "not shown"),
        ([math.nan], "discard", "failure"),
        ([0.95, 0.98, math.inf], "discard", "failure"),
    ],
)
def test_how_a_candidate_ends(values: Sequence[float], kind: str, reason: str) -> None:
    action = next_action(values, POOL, 0.001, DESIGN)
    assert (action.kind, action.reason) == (kind, reason)
    assert action.tested == (len(values) > 1)
    mirrored = Pool(tuple(-value for value in POOL.values))
    higher = Design(looks=(2, 4), shares=(0.4, 0.6), lower_is_better=False)
    assert next_action([-value for value in values], mirrored, 0.001, higher).kind == kind


def test_a_promotion_replaces_the_pool_and_pools_the_noise() -> None:
    runs = (0.9, 0.92, 0.93)
    kept = next_action(runs, POOL, 0.01, DESIGN)
    start = Search(POOL, tests=4)
    failed = start.ended(runs, confirm(kept, (0.93, math.nan), DESIGN))
    assert failed == Search(POOL, tests=5)  # nothing is kept, nothing earned
    repeats = (0.93, 0.95, 0.94, 0.96)
    after = start.ended(runs, confirm(kept, repeats, DESIGN), repeats)
    assert after.pool.values == repeats and after.discoveries == (5,)
    assert after.level(DESIGN) == online_level(5, (5,), DESIGN.alpha)
    groups = [repeats, POOL.values, runs[1:]]
    squares = sum((len(group) - 1) * stats.tstd(group) ** 2 for group in groups)
    assert after.pool.pooled_squares == pytest.approx(squares) and after.pool.pooled_df == 3 + 7 + 1


def test_only_tests_count_and_only_keeps_earn() -> None:
    search = Search(POOL)
    for values in ([1.05], [math.nan], [0.95, 1.02], [0.95, math.nan]):
        search = search.ended(values, next_action(values, search.pool, 0.01, DESIGN))
    assert (search.tests, search.discoveries) == (2, ()) and search.pool == POOL


def test_a_pool_that_has_no_noise_or_failed_is_refused() -> None:
    for values, message in (((1.0,), "at least 2"), ((1.0, 1.0, 1.0), "seed of its own"), ((1.0, math.nan), "nan")):
        with pytest.raises(ConfigError, match=message):
            next_action([0.9], Pool(values), None, DESIGN)
    for wrong in ({"pool": 1}, {"screen": 0.0}, {"looks": (4, 4)}, {"shares": (0.9, 0.9, 0.9)}, {"alpha": 1.0}):
        with pytest.raises(ConfigError):
            Design(**wrong)  # type: ignore[arg-type]
