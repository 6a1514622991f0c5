"""Designs with more runs of the baseline: estimates against other computations, levels, looks, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import baseline_designs
from partwise.comparison.stats.designs import measure_covariate
from partwise.comparison.stats.intervals import measure
from partwise.comparison.stats.methods import find_method
from partwise.comparison.stats.protocol import Claim, Rules, first_seeds
from partwise.config import ConfigError

CLAIM = Claim("arm", "base")


def draw(n: int, m: int, r: float, seed: int, arms: int = 1) -> tuple[np.ndarray, np.ndarray]:
    a, b = baseline_designs.runs_of(np.random.default_rng(seed), 1, arms, n, m, r)
    return a[0], b[0]


def by_seed(values: Any) -> dict[int, float]:
    return {seed: float(value) for seed, value in enumerate(values)}


def test_the_covariate_estimate_is_the_fitted_line_at_the_mean_of_all_baseline_runs() -> None:
    (arm,), base = draw(10, 30, 0.6, seed=1)
    x = np.stack([np.ones(10), base[:10]], axis=1)
    coefficients, (squares,), *_ = np.linalg.lstsq(x, arm, rcond=None)
    at = np.array([1.0, base.mean()])
    line = squares / 8 * at @ np.linalg.inv(x.T @ x) @ at
    center = (1 - coefficients[1]) ** 2 * base.var(ddof=1) / 30
    satterthwaite = (line + center) ** 2 / (line**2 / 8 + center**2 / 29)
    effect = measure_covariate(measure, "arm", "base", by_seed(arm), by_seed(base))
    assert effect.mean == pytest.approx(at @ coefficients - base.mean(), rel=1e-12)
    assert effect.standard_error == pytest.approx(math.sqrt(line + center), rel=1e-12)
    assert effect.df == pytest.approx(stats.hmean([satterthwaite, 8]), rel=1e-12)
    assert effect.slope == pytest.approx(coefficients[1], rel=1e-12)
    assert effect.correlation == pytest.approx(np.corrcoef(arm, base[:10])[0, 1], rel=1e-12)
    assert effect.p == pytest.approx(2 * stats.t.sf(abs(effect.mean / effect.standard_error), effect.df), rel=1e-9)
    assert (effect.paired, effect.n_arm, effect.n_against) == (False, 10, 30)


@pytest.mark.parametrize(("design", "factor"), [("paired", 1), ("unpaired", 3), ("covariate", 3)])
def test_a_comparison_judges_by_its_design(design: Any, factor: int) -> None:
    """At each look an arm has n seeds and the baseline `factor` times as many; others are not read."""
    arms, base = draw(20, 60, 0.4, seed=2, arms=2)
    values = {"base": by_seed(base), "arm": by_seed(arms[0]), "other": by_seed(arms[1])}
    claims = [CLAIM, Claim("other", "base")]
    rules = Rules(margin=1.5, looks=(4, 8, 16), design=design, baseline_runs=factor)
    for effect, arm in zip(rules.judge(values, claims), arms, strict=True):
        n = effect.looks[effect.look - 1]
        d, error, df = baseline_designs.DESIGNS[design](arm[None, None, :n], base[None, : factor * n])
        assert effect.mean == pytest.approx(d[0, 0], rel=1e-12)
        assert effect.standard_error == pytest.approx(error[0, 0], rel=1e-12)
        assert effect.df == pytest.approx(df[0, 0], rel=1e-12)
    few = {"base": by_seed(base[: factor * 4 - 1]), "arm": by_seed(arms[0][:4])}
    assert rules.judge(few, [CLAIM]) == []  # a run of the baseline is missing
    assert len(rules.judge({**few, "base": by_seed(base[: factor * 4])}, [CLAIM])) == 1


@pytest.mark.parametrize(("design", "factor"), [("unpaired", 3), ("covariate", 3)])
@pytest.mark.parametrize("looks", [(), (4, 8)])
def test_at_most_5_percent_of_families_make_a_false_claim(design: Any, factor: int, looks: tuple[int, ...]) -> None:
    rules, false, draws = Rules(margin=1.0, looks=looks, design=design, baseline_runs=factor), 0, 1000
    claims = [Claim(f"arm {number}", "base") for number in range(3)]
    for seed in range(draws):
        arms, base = draw(8, 8 * factor, 0.1, seed=seed, arms=3)
        values = {"base": by_seed(base)} | {f"arm {number}": by_seed(arm) for number, arm in enumerate(arms)}
        false += any(effect.verdict in ("better", "worse") for effect in rules.judge(values, claims))
    assert 0.01 < false / draws < 0.05 + 3 * math.sqrt(0.05 * 0.95 / draws)


def test_a_covariate_makes_intervals_narrower_than_pairs() -> None:
    """The standard errors have a ratio of 0.87 in theory: sqrt((0.84 / 24 + 0.36 / 144) / (1.2 / 24))."""
    widths = []
    for seed in range(40):
        (arm,), base = draw(24, 144, 0.4, seed=seed)
        values = {"arm": by_seed(arm), "base": by_seed(base)}
        (pairs,) = Rules(looks=()).judge(values, [CLAIM])
        (line,) = Rules(looks=(), design="covariate", baseline_runs=6).judge(values, [CLAIM])
        assert line.slope is not None and (line.n, line.n_against) == (24, 144)
        widths.append([line.high - line.low, pairs.high - pairs.low])  # type: ignore[operator]
    line_width, pairs_width = np.mean(widths, axis=0)
    assert line_width < 0.95 * pairs_width


@pytest.mark.parametrize("method", [1, 2])
def test_arms_that_compute_the_same_are_equivalent_as_in_pairs(method: int) -> None:
    _, base = draw(8, 16, 0.0, seed=4)
    values = {"arm": by_seed(base[:8]), "base": by_seed(base)}
    rules = Rules(looks=(), design="covariate", baseline_runs=2, method=method)
    (effect,) = rules.judge(values, [CLAIM])
    assert (effect.verdict, effect.low, effect.high, effect.paired) == ("equivalent", 0.0, 0.0, True)


def test_constant_and_failed_runs_have_no_line() -> None:
    (arm,), base = draw(8, 16, 0.0, seed=5)
    rules = Rules(looks=(), failure=9.0, design="covariate", baseline_runs=2)
    (constant,) = rules.judge({"arm": by_seed(arm), "base": by_seed([1.0] * 16)}, [CLAIM])
    assert constant.slope is None and constant.verdict is not None
    (failed,) = rules.judge({"arm": by_seed([*arm[:7], 10.0]), "base": by_seed(base)}, [CLAIM])
    assert failed.slope is None and (failed.failed_arm, failed.n_arm, failed.n_against) == (1, 8, 16)


def test_the_seeds_to_decide_are_those_of_the_covariate() -> None:
    (arm,), base = draw(16, 48, 0.9, seed=6)
    first = measure_covariate(measure, "arm", "base", by_seed(arm), by_seed(base), margin=0.01)
    shifted = by_seed(arm + 0.1 - first.mean)
    effect = measure_covariate(measure, "arm", "base", shifted, by_seed(base), margin=0.01)
    (decided,) = find_method(1).decide([effect], 0.05)
    fewest = next(
        n
        for n in range(17, 2000)
        if (stats.t.ppf(0.975, n - 2) + 0.8416) * first.standard_error * math.sqrt(16 / n) < 0.1  # type: ignore[operator]
    )
    assert (decided.verdict, decided.seeds_to_decide) == ("undecided", fewest)


def test_the_first_seeds_of_the_baseline_are_more() -> None:
    values = {"base": by_seed(range(12)), "arm": by_seed(range(6))}
    kept = first_seeds(values, 2, "base", 3)
    assert {arm: sorted(runs) for arm, runs in kept.items()} == {"base": [0, 1, 2, 3, 4, 5], "arm": [0, 1]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"design": "paired", "baseline_runs": 2}, "design=paired uses one run of the baseline per seed"),
        ({"design": "covariate"}, "give baseline_runs=2 or more"),
        ({"design": "unpaired", "baseline_runs": 0}, "baseline_runs=0: expected 1 or more"),
        ({"design": "unparied"}, "design=unparied: expected paired, unpaired or covariate"),
    ],
)
def test_rules_refuse_a_design_that_cannot_use_its_runs(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Rules(**options)


@pytest.mark.parametrize("design", ["unpaired", "covariate"])
@pytest.mark.parametrize(
    ("n_arm", "n_baseline", "told"),
    [(8, 24, ""), (8, 22, " b has 2 runs fewer than planned."), (7, 24, " a has 1 run fewer than planned.")],
)
def test_planned_runs_of_the_baseline_are_not_missing_ones(design: str, n_arm: int, n_baseline: int, told: str) -> None:
    rng = np.random.default_rng(0)
    values = {
        "b": dict(enumerate(rng.normal(0, 1, n_baseline).tolist())),
        "a": dict(enumerate(rng.normal(0, 1, n_arm).tolist())),
    }
    rules = Rules(looks=(), design=design, baseline_runs=3)
    (effect,) = rules.judge(values, [Claim("a", "b")])
    assert ("fewer than planned" in effect.sentence) == bool(told) and told in effect.sentence
    assert "fewer than b" not in effect.sentence
