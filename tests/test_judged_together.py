"""The simulation of intervals together and of growing files, against the rules that judge."""

import numpy as np
import pytest

import judged_together as simulated
from partwise.comparison.stats.protocol import Claim, Rules


@pytest.mark.parametrize(("real", "margin"), [(0, 0.01), (2, 0.01), (3, 0.5), (0, 3.0)])
def test_its_intervals_are_those_of_the_rules(real: int, margin: float) -> None:
    """Each comparison's intervals hold the true differences in the simulation as often as by the rules."""
    arms, seeds, draws = 3, 8, 60
    truths = np.where(np.arange(arms) < real, 3.0, 0.0)
    x = simulated.differences(np.random.default_rng([seeds, arms]), draws, truths, seeds)
    rules, claims = Rules(margin=margin, looks=()), [Claim(f"arm {arm}", "base") for arm in range(arms)]
    held = []
    for comparison in x:
        values = {f"arm {arm}": dict(enumerate(row.tolist())) for arm, row in enumerate(comparison)}
        effects = rules.judge({"base": dict.fromkeys(range(seeds), 0.0), **values}, claims)
        held.append([e.low <= t <= e.high for e, t in zip(effects, truths, strict=True)])  # type: ignore[operator]
    expected = float(np.mean(np.all(held, axis=1))), float(np.mean(held))
    assert simulated.coverage(seeds, truths, margin, draws) == pytest.approx(expected, abs=1e-12)


def test_intervals_together_hold_less_often_than_one() -> None:
    together, one = simulated.coverage(16, np.zeros(10), 3.0, 4000)
    assert 0.87 < together < 0.91 and one > 0.98


def test_a_file_that_is_judged_again_at_each_size_is_false_too_often() -> None:
    """The help of `partwise verdict` states it: 15% at 4, 8, 16 and 32 seeds."""
    any_size, first = simulated.false_while_growing((4, 8, 16, 32), 1, 4000)
    assert 0.13 < any_size < 0.175 and 0.035 < first < 0.065


def test_the_page_has_its_sections() -> None:
    """`python tests/judged_together.py` writes them; of each row, what is not simulated."""
    page = (simulated.Path(__file__).parents[1] / simulated.PAGE).read_text(encoding="utf-8")
    rows = [*simulated.interval_rows(2), *simulated.growing_rows(2)]
    assert all(row.rsplit("|", 3)[0] in page for row in rows)
