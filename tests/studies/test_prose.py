"""The intervals that the documents state of the studies follow from the stored results."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from partwise.comparison.results import Ratio
from partwise.studies.claims import find_outcomes
from partwise.studies.growth import contrasts, growth_lines
from partwise.studies.study import Study, StudyResults, all_studies

ROOT = Path(__file__).parents[2]
END = r"([-+]?\d+\.\d+)( lower| below| higher| above)?"
INTERVAL = re.compile(rf"(?<![\w.]){END} to {END}(?![\d.]*\d)")
CLAIMS = "Published claims, tested"

OTHER = {
    ("1.74", "1.82"): "a step in float32, of benchmarks/claim_step.py",
    ("0.86", "0.89"): "million parameters",
    ("0.34", "0.86"): "million parameters",
    ("1.532", "1.536"): "the baseline's losses",
    ("-0.0108", "0.0087"): "runs of 1,500 steps, which are no study",
    ("-0.0166", "0.0072"): "baselines of two comparisons of a study, in float32 and bfloat16",
}
"""Ranges in docs/claims.md that are no intervals of a study."""

Ends = tuple[str, str]
Values = tuple[float, float]


@pytest.fixture(scope="module")
def stored() -> list[Values]:
    """The low and the high end of every interval of the table of claims, and of the same with the opposite sign."""
    found = [*intervals([study for study in all_studies() if study.results])]
    return found + [(-high, -low) for low, high in found]


def intervals(studies: Sequence[Study]) -> Iterator[Values]:
    lines = growth_lines(studies)
    found = [finding for each in find_outcomes(studies).values() for finding in each]
    described = [change for each in contrasts(lines) for change in each.changes.values()]
    points = [point for finding in found for point in (*finding.over_horizons, finding.change)]
    points += [point for each in lines.values() for line in each for point in (*line.points, line.change)]
    comparisons = [
        StudyResults.from_json(study.results).comparisons.values() for study in studies if study.results is not None
    ]
    points += [
        point
        for each in comparisons
        for results in each
        for claim in results.claims
        for point in claim.effect_over_training
    ]
    ratios = [ratio for finding in found if finding.compute_saved for ratio in finding.compute_saved.ratios.values()]
    for each in [*described, *points, *ratios, *(finding.effect for finding in found)]:
        if each is not None and each.low is not None and each.high is not None:
            yield each.low, each.high
            if isinstance(each, Ratio):  # as many is the inverse of fewer
                yield 1 / each.high, 1 / each.low


def stated(text: str) -> list[Ends]:
    """The intervals in a text: *0.014 lower to 0.012 higher* is one from -0.014 to 0.012."""
    found = []
    for low, low_word, high, high_word in INTERVAL.findall(" ".join(text.split())):
        ends = [
            f"-{end}" if word in (" lower", " below") else end.lstrip("+")
            for end, word in ((low, low_word), (high, high_word))
        ]
        found.append((ends[0], ends[1]))
    return found


def is_stored(ends: Ends, stored: Sequence[Values]) -> bool:
    """In the decimal places of each end."""
    return any(
        all(f"{value:.{len(text.partition('.')[2])}f}" == text for text, value in zip(ends, pair, strict=True))
        for pair in stored
    )


def test_the_intervals_of_the_claims_are_those_of_the_results(stored: list[Values]) -> None:
    found = stated((ROOT / "docs/claims.md").read_text(encoding="utf-8"))
    assert set(OTHER) <= set(found)
    assert [ends for ends in found if ends not in OTHER and not is_stored(ends, stored)] == []


def test_the_intervals_of_the_nine_changes_are_those_of_the_results(stored: list[Values]) -> None:
    page = (ROOT / "docs/nine-changes.md").read_text(encoding="utf-8")
    found = stated(re.sub(r"^!\[.*$", "", page, flags=re.MULTILINE))  # without what the pictures show
    seeds = ("0.34", "1.81")  # of DyT, the lowest and the highest
    assert [ends for ends in found if ends != seeds and not is_stored(ends, stored)] == [] and len(found) > 15


def test_the_intervals_of_the_readme_about_claims_are_those_of_the_results(stored: list[Values]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (entry,) = [item for item in re.split(r"\n(?=- )", readme) if CLAIMS in item]
    assert len(stated(entry)) > 1
    assert [ends for ends in stated(entry) if not is_stored(ends, stored)] == []


def test_intervals_are_read_with_their_signs() -> None:
    text = "worse by 0.1 (-0.011 to\n+0.023), 0.014 lower to 0.012 higher, 1.05 times (1.01 to 1.10; p 0.2), 2.0.1 to 3.0.1"
    assert stated(text) == [("-0.011", "0.023"), ("-0.014", "0.012"), ("1.01", "1.10")]
    assert is_stored(("-0.01", "0.023"), [(-0.0099, 0.0226)])
    assert not is_stored(("-0.01", "0.022"), [(-0.0099, 0.0226)]) and not is_stored(
        ("0.01", "0.023"), [(-0.0099, 0.0226)]
    )
