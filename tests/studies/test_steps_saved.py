"""What docs/claims.md says of the share of steps at equal loss, after 1,000 steps and after 2,000."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from scipy import stats

from partwise.comparison.horizons import paired_ends
from partwise.comparison.stats.compute_saved import steps_at
from partwise.studies.study import all_studies

Ends = Sequence[tuple[int, float]]


def interval(values: Sequence[float]) -> tuple[float, float]:
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def excludes_zero(values: Sequence[float]) -> bool:
    low, high = interval(values)
    return low > 0 or high < 0


def log_ratios(arm: Ends, baseline: Ends) -> tuple[float, ...]:
    """Of the baseline's steps to the arm's at equal loss, after the second and third length; () if a lead began before."""
    found = []
    for length in (1, 2):
        worse, better, sign = (arm, baseline, -1) if arm[length][1] > baseline[length][1] else (baseline, arm, 1)
        steps, earlier = steps_at(worse[length][1], better)
        if earlier:
            return ()
        found.append(sign * math.log(worse[length][0] / steps))
    return tuple(found)


def test_of_the_differences_that_shrink_in_nats_five_of_ten_shrink_in_steps() -> None:
    nats, steps = [], {}
    for study in all_studies():
        for results in study.read().comparisons.values() if not study.name.startswith("growth") else ():
            arms = {arm.name: arm for arm in results.arms}
            for claim in results.claims:
                effect = claim.effect
                if [end.step for end in claim.effect_over_horizons] != [500, 1000, 2000]:
                    continue
                pairs = paired_ends(arms[effect.arm], arms[effect.against], effect)
                name = f"{study.name} {effect.arm}"
                first, *_, last = ([a[i][1] - b[i][1] for a, b in pairs] for i in range(3))
                change = [after - before for before, after in zip(first, last, strict=True)]
                if abs(fmean(last)) < abs(fmean(first)) and excludes_zero(change):
                    nats.append(name)
                ratios = [log_ratios(*pair) for pair in pairs]
                if all(ratios):
                    steps[name] = ratios
    assert len(nats) == 16
    known = [name for name in nats if name in steps]
    shrink = [
        name
        for name in known
        if excludes_zero([after - before for before, after in steps[name]])
        and abs(fmean(after for _, after in steps[name])) < abs(fmean(before for before, _ in steps[name]))
    ]
    assert len(known) == 10 and len(shrink) == 5
    assert sorted(name.split()[0] for name in shrink) == ["differential", "mup", "qknorm", "qknorm", "relu2"]
