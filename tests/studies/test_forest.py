"""The forest plot of all claims: every claim has a row, readable without color."""

import re
from pathlib import Path

import pytest

from partwise.plots.plotting import LINEAR
from partwise.studies.claims import find_outcomes
from partwise.studies.forest import COLORS, draw_claims, panel_rows
from partwise.studies.study import LIBRARY, Study, StudyResults, find_study


@pytest.fixture
def library() -> list[Study]:
    """The studies of the package, read apart from the working folder's."""
    return [find_study(str(path)) for path in sorted(LIBRARY.glob("*.yaml"), key=lambda path: path.stem)]


def test_every_claim_has_a_row_with_its_outcome_as_a_word(library: list[Study], here: Path) -> None:
    texts = re.findall(r"<text[^>]*>(.*?)</text>", draw_claims(library))
    outcomes = [
        outcome or "no prediction"
        for found in find_outcomes(library).values()
        for outcome in [each.outcome for each in found]
    ]
    for word in (*COLORS, "no prediction"):
        if word:
            assert texts.count(word) == outcomes.count(word), word
    assert len(set(outcomes)) >= 2
    assert {study.name for study in library if study.results} <= set(texts)


def test_a_panel_has_one_metric_and_no_two_rows_of_a_study_read_alike(library: list[Study], here: Path) -> None:
    texts = re.findall(r"<text[^>]*>(.*?)</text>", draw_claims(library))
    effects = [finding.effect for found in find_outcomes(library).values() for finding in found]
    metrics = list(dict.fromkeys(effect.metric for effect in effects))
    assert len(metrics) == 3
    for metric in metrics:
        assert sum(f"difference of {metric}," in text for text in texts) == 1, metric
        rows = panel_rows(library, metric)
        assert sum(effect is not None for _, effect, _ in rows) == sum(each.metric == metric for each in effects)
        assert all(effect.metric == metric for _, effect, _ in rows if effect)
        heading = ""
        labels = []
        for label, effect, _ in rows:
            heading = heading if effect else label
            labels.append((heading, label))
        assert len(set(labels)) == len(labels)


def test_means_are_where_the_axis_puts_them() -> None:
    """Symmetric about zero, linear to LINEAR: a claim of twice the effect lies twice as far from zero."""
    from matplotlib.figure import Figure

    from partwise.comparison.stats.intervals import judge
    from partwise.studies.forest import draw_panel

    values = (-LINEAR / 2, LINEAR / 4, LINEAR / 2)
    effects = [
        judge("a", "b", {0: 1 + v, 1: 1 + v + 1e-4, 2: 1 + v - 1e-4}, dict.fromkeys(range(3), 1.0)) for v in values
    ]
    axes = Figure().subplots()
    draw_panel(axes, [("arm", effect, "seen here") for effect in effects])
    left, zero, near, far = (axes.transData.transform((v, 0))[0] for v in (values[0], 0.0, *values[1:]))
    assert far - zero == pytest.approx(2 * (near - zero)) == pytest.approx(zero - left)
    bands = [(patch.get_x(), patch.get_width()) for patch in axes.patches]
    assert bands == [(-each.margin, 2 * each.margin) for each in effects]


def test_stored_outcomes_follow_from_the_stored_verdicts(library: list[Study]) -> None:
    tested = [study for study in library if study.results]
    assert tested
    for study in tested:
        assert study.results is not None
        for key, results in StudyResults.from_json(study.results).comparisons.items():
            if results.study:
                assert results.study.answers == tuple(study.entries[key].answers(results)), f"{study.name}, {key}"
