"""What the report says of runs of several lengths: the change of the difference, and the compute saved in words."""

import math
from statistics import fmean, stdev

import pytest

from partwise.comparison.horizons import change_over_horizons, compute_saved
from partwise.comparison.report.horizons import horizons, in_words, saved_sentence
from partwise.comparison.results import Ratio, Results
from partwise.comparison.stats.compute_saved import log_ratio
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


def test_changes_and_ratios_of_several_arms_have_bonferronis_level() -> None:
    """Holm's levels follow from the effects: the arm with the largest p would have other quantities' intervals unadjusted."""
    results = StudyResults.from_json(LIBRARY / "positions" / "results.json").comparisons["shakespeare"]
    found = {claim.effect.nominal_alpha: claim for claim in results.claims}
    assert len(results.claims) == 3 and max(found) == 0.05  # one is at Holm's last step
    claim, half = found[0.05], t_critical(7, 0.05 / 3)
    baseline, arm = results.arm(claim.effect.against), results.arm(claim.effect.arm)
    assert baseline is not None and arm is not None
    change = change_over_horizons(arm, baseline, claim.effect)
    assert change is not None and change == claim.change_over_horizons
    saved = compute_saved(arm, baseline, claim.effect, is_loss=True)
    assert saved == claim.compute_saved and saved is not None
    pairs = [(arm.trial(seed), baseline.trial(seed)) for seed in claim.effect.seeds]
    logs = [log_ratio(own.horizons, other.horizons).value for own, other in pairs if own and other]  # type: ignore[arg-type]
    steps = saved.ratios["steps"]
    assert steps.low is not None and steps.high is not None
    assert math.log(steps.high / steps.low) == pytest.approx(2 * half * stdev(logs) / math.sqrt(8), rel=1e-9)


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
    ],
)
def test_a_ratio_in_words(ratio: tuple[float | None, ...], words: str) -> None:
    assert in_words(Ratio(ratio=ratio[0], low=ratio[1], high=ratio[2]), "steps") == words


def test_the_sentence_of_an_arm_that_needs_less_and_of_one_that_needs_more(muon: Results) -> None:
    sentence = saved_sentence(muon.claims[0])
    assert (
        "needs 1.73 times (1.60 to 1.87) fewer steps than llama, and 1.41 times (1.31 to 1.52) fewer FLOPs." in sentence
    )
    tying = StudyResults.from_json(LIBRARY / "tying" / "results.json").comparisons["shakespeare"]
    assert "needs 1.17 times (1.11 to 1.24) as many steps and FLOPs as llama." in saved_sentence(tying.claims[0])
