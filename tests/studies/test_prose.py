"""The intervals that the documents state of the studies follow from the stored results."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from partwise.comparison.results import Ratio, StepEffect
from partwise.studies.claims import find_outcomes
from partwise.studies.growth import contrasts, growth_lines
from partwise.studies.study import Study, StudyResults, all_studies

ROOT = Path(__file__).parents[2]
NUMBER = r"[-+]?\d+\.\d+"
INTERVAL = re.compile(
    rf"\(({NUMBER})(?: lower| below| above| higher)? to ({NUMBER})(?: lower| below| above| higher)?[,;) ]"
)
CLAIMS = "Published claims, tested"

Ends = tuple[float, float]


@pytest.fixture(scope="module")
def stored() -> list[Ends]:
    """Of every interval of the table of claims both ends, without signs: prose says *1.2 times fewer*, or *0.01 lower*."""
    studies = [study for study in all_studies() if study.results]
    return [(abs(low), abs(high)) for low, high in intervals(studies)]


def intervals(studies: Sequence[Study]) -> Iterator[Ends]:
    lines = growth_lines(studies)
    found = [finding for each in find_outcomes(studies).values() for finding in each]
    described = [change for each in contrasts(lines) for change in each.changes.values()]
    points = [point for finding in found for point in (*finding.over_horizons, finding.change)]
    points += [point for each in lines.values() for line in each for point in (*line.points, line.change)]
    points += [
        point
        for study in studies
        if study.results
        for results in StudyResults.from_json(study.results).comparisons.values()
        for claim in results.claims
        for point in claim.effect_over_training
    ]
    ratios = [ratio for finding in found if finding.compute_saved for ratio in finding.compute_saved.ratios.values()]
    for each in [*described, *points, *ratios, *(finding.effect for finding in found)]:
        if each is not None and each.low is not None and each.high is not None:
            yield each.low, each.high
            if isinstance(each, Ratio):  # more is the inverse of fewer
                yield 1 / each.high, 1 / each.low


def stated(text: str) -> list[tuple[str, str]]:
    return [(low.lstrip("+-"), high.lstrip("+-")) for low, high in INTERVAL.findall(" ".join(text.split()))]


def is_stored(ends: tuple[str, str], stored: Sequence[Ends]) -> bool:
    """In the decimal places of each end; a negative interval may be stated from the smaller number to the larger."""
    return any(
        all(f"{value:.{len(text.partition('.')[2])}f}" == text for text, value in zip(ends, pair, strict=True))
        for low, high in stored
        for pair in ((low, high), (high, low))
    )


def test_every_interval_of_the_claims_is_one_of_the_results(stored: list[Ends]) -> None:
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    found = stated(text)
    assert len(found) > 40
    assert [ends for ends in found if not is_stored(ends, stored)] == []


def test_every_interval_of_the_readme_about_claims_is_one_of_the_results(stored: list[Ends]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (entry,) = [item for item in re.split(r"\n(?=- )", readme) if CLAIMS in item]
    assert len(stated(entry)) > 1
    assert [ends for ends in stated(entry) if not is_stored(ends, stored)] == []


def test_a_stale_interval_is_noticed(stored: list[Ends]) -> None:
    change = StepEffect(step=1, mean=0.0, low=-0.0316, high=0.0124)
    pairs = [(abs(change.low or 0), abs(change.high or 0))]
    assert is_stored(("0.032", "0.012"), pairs) and is_stored(("0.0124", "0.0316"), pairs)
    assert not is_stored(("0.032", "0.013"), pairs) and not is_stored(("1.01", "99.99"), stored)
