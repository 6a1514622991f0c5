"""What the report says of runs of several lengths: the change of the difference, and the compute saved in words."""

import math
from statistics import fmean, stdev

import pytest
from scipy import stats

from partwise.comparison.horizons import change_over_horizons, compute_saved, differences_at_ends
from partwise.comparison.judging import effect_over_training
from partwise.comparison.report.horizon_section import factor_cell, horizons, in_words, saved_sentence
from partwise.comparison.results import Ratio, Results
from partwise.comparison.stats.compute_saved import log_ratio
from partwise.comparison.stats.group_sequential import nominal_level
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.stats.samples import t_critical
from partwise.plots.blocks import Table
from partwise.studies.study import LIBRARY, StudyResults


@pytest.fixture
def muon() -> Results:
    return StudyResults.from_json(LIBRARY / "muon" / "results.json").comparisons["shakespeare"]


def test_the_change_is_that_of_the_difference_of_each_seed(muon: Results) -> None:
    baseline, arm = muon.arms
    effect = muon.claims[0].effect
    ends = [{seed: dict(each.trial(seed).horizons) for seed in effect.seeds} for each in (arm, baseline)]  # type: ignore[union-attr]
    changes = [
        (ends[0][seed][2000] - ends[1][seed][2000]) - (ends[0][seed][500] - ends[1][seed][500]) for seed in effect.seeds
    ]
    change = change_over_horizons(arm, baseline, effect)
    assert change is not None and change.low is not None and change.high is not None
    half = t_critical(7, effect.nominal_alpha) * stdev(changes) / math.sqrt(8)
    assert change.step == 2000 and change.mean == pytest.approx(fmean(changes), abs=1e-12)
    assert (change.low, change.high) == pytest.approx((fmean(changes) - half, fmean(changes) + half), abs=1e-12)
    [table] = [block for block in horizons(muon) if isinstance(block, Table)]
    assert table.head[-2:] == ["2,000 steps", "change"] and str(table.rows[0][-1]).startswith("0.0669 (")


@pytest.mark.parametrize("looks", [(), (4, 8)])
def test_only_the_last_difference_of_several_arms_has_holms_level(looks: tuple[int, ...]) -> None:
    """Holm's levels follow from the last differences: the arm with the largest p has an unadjusted one."""
    arms = StudyResults.from_json(LIBRARY / "positions" / "results.json").comparisons["shakespeare"].arms
    baseline, *others = arms
    values = {arm.name: {trial.seed: trial.value or math.nan for trial in arm.trials} for arm in arms}
    claims = [Claim(arm.name, baseline.name) for arm in others]
    effects = Rules(margin=0.02, looks=looks, failure=100.0).judge(values, claims)
    bonferroni = nominal_level(looks, 1, 0.05 / 3)  # of planned looks, the first decides
    assert all(effect.look == 1 for effect in effects) and max(each.nominal_alpha for each in effects) > 2 * bonferroni
    for arm, effect in zip(others, effects, strict=True):
        pairs = [(arm.trial(seed), baseline.trial(seed)) for seed in effect.seeds]
        ends = [(own.horizons, other.horizons) for own, other in pairs if own and other]
        differences = [[a - b for (_, a), (_, b) in zip(*pair, strict=True) if a and b] for pair in ends]
        points = effect_over_training(differences_at_ends(arm, baseline, effect), effect)
        change, saved = change_over_horizons(arm, baseline, effect), compute_saved(arm, baseline, effect, is_loss=True)
        assert change is not None and saved is not None
        levels = [bonferroni, bonferroni, effect.nominal_alpha]
        for index, (point, level) in enumerate(zip(points, levels, strict=True)):
            assert point.high == pytest.approx(upper([each[index] for each in differences], level), rel=1e-9)
        assert change.high == pytest.approx(upper([each[-1] - each[0] for each in differences], bonferroni), rel=1e-9)
        logs = [log_ratio(own, other).value for own, other in ends]  # type: ignore[arg-type]
        assert saved.ratios["steps"].high == pytest.approx(math.exp(upper(logs, bonferroni)), rel=1e-9)


def upper(values: list[float], alpha: float) -> float:
    return fmean(values) + stats.t.ppf(1 - alpha / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def test_runs_of_one_length_and_failed_runs_have_no_change(muon: Results) -> None:
    baseline, arm = muon.arms
    effect = muon.claims[0].effect
    short = arm.model_copy(
        update={"trials": tuple(t.model_copy(update={"horizons": t.horizons[:1]}) for t in arm.trials)}
    )
    first, *others = arm.trials
    lost = first.model_copy(update={"horizons": ((500, 1.8), (1000, None), (2000, None))})
    failed = arm.model_copy(update={"trials": (lost, *others)})
    assert change_over_horizons(short, baseline, effect) is None
    assert change_over_horizons(failed, baseline, effect) is None


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        ((1.25, 1.1, 1.42), "1.25 times (1.10 to 1.42) fewer steps"),
        ((0.8, 0.5, 1.0), "1.25 times (1.00 to 2.00) as many steps"),
        ((1.052, 0.9983, 1.11), "1.05 times (0.998 to 1.11) fewer steps"),
        ((1.04, 1.0036, 1.08), "1.04 times (1.004 to 1.08) fewer steps"),
        ((1.0004, 0.93, 1.08), "1.0004 times (0.93 to 1.08) fewer steps"),
        ((None, 4.0, None), "more than 4.00 times fewer steps"),
        ((None, None, 0.25), "more than 4.00 times as many steps"),
        ((1.25, None, None), "1.25 times fewer steps"),
        ((0.8, None, None), "1.25 times as many steps"),
    ],
)
def test_a_ratio_in_words(ratio: tuple[float | None, ...], words: str) -> None:
    assert in_words(Ratio(ratio=ratio[0], low=ratio[1], high=ratio[2]), "steps") == words


def test_a_cell_without_an_interval_is_the_ratio() -> None:
    assert factor_cell(Ratio(ratio=0.8, low=None, high=None)) == "0.80"


def test_the_sentence_of_an_arm_that_needs_less_and_of_one_that_needs_more(muon: Results) -> None:
    sentence = saved_sentence(muon.claims[0])
    assert (
        "needs 1.78 times (1.66 to 1.90) fewer steps than llama, and 1.45 times (1.35 to 1.55) fewer FLOPs." in sentence
    )
    tying = StudyResults.from_json(LIBRARY / "tying" / "results.json").comparisons["shakespeare"]
    assert "needs 1.19 times (1.13 to 1.26) as many steps and FLOPs as llama." in saved_sentence(tying.claims[0])
