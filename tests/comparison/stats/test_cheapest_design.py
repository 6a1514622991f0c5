"""The runs that each design needs, against those of an independent simulation (docs/statistics.md)."""

import math
from pathlib import Path

import pytest

from partwise.cli.commands.power_table import compute_power, design_sentence
from partwise.comparison.stats.cheapest_design import design_runs
from partwise.comparison.stats.noise import Noise
from partwise.comparison.stats.simulated_power import Design
from partwise.config import ConfigError

PAGE = Path(__file__).parents[3] / "docs" / "statistics.md"


def simulated_runs() -> list[tuple[int, float, tuple[int, ...]]]:
    """Of tests/baseline_designs.py: arms, r, and the fewest runs of each design, for a difference of 1 SD of a run."""
    table = (
        PAGE.read_text(encoding="utf-8")
        .split("| arms | r | paired | unpaired | f | covariate | f |")[1]
        .split("\n\n")[0]
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [(int(arms), float(r), (int(paired), int(un), int(co))) for arms, r, paired, un, _, co, _ in rows]


@pytest.mark.parametrize(("arms", "r", "simulated"), [row for row in simulated_runs() if row[1] < 0.9])
def test_the_runs_are_those_of_the_simulation(arms: int, r: float, simulated: tuple[int, ...]) -> None:
    """Without r = 0.9, where the simulation has 8 seeds or more throughout. Unpaired runs are assumed not to correlate."""
    found = design_runs(1.0, math.sqrt(2 * (1 - r)), r, arms, 0.05)
    assert [each.design for each in found] == ["paired", "unpaired", "covariate"]
    for each, expected in zip(found, simulated, strict=True):
        if each.design != "unpaired" or r < 0.5:
            assert each.runs == pytest.approx(expected, rel=0.07)


def test_an_effect_that_no_number_of_seeds_shows_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs more than 100,000 seeds"):
        design_runs(1e-6, 1.0, 0.0, 1, 0.05)


@pytest.mark.parametrize(
    ("r", "claims", "end"),
    [(0.05, 10, "fewest are 273 with --design unpaired --baseline-runs 3 --seeds 21"), (0.9, 10, ": pairing pays")],
)
def test_a_plan_proposes_the_design_with_the_fewest_runs(r: float, claims: int, end: str) -> None:
    noise = Noise(0.01 * math.sqrt(2 * (1 - r)), math.inf, "", r)
    sentence = design_sentence(compute_power([Design((16,), claims)], noise, 0.01))
    assert sentence.endswith(end) and f"r = {r:.2f}" in sentence and "--design paired --seeds" in sentence
