"""The teacher's page: its answers are right, its mistakes are wrong, and it has every lesson."""

import math
from pathlib import Path

import pytest

from partwise.comparison.stats.samples import t_critical
from partwise.lessons.exercises import CHECKS
from partwise.lessons.lesson import all_lessons
from partwise.lessons.teaching import NOTES, overview

LESSONS = all_lessons()


@pytest.mark.parametrize("number", NOTES)
def test_solutions_are_right_and_mistakes_are_explained(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])  # a solution of lesson 12 is a file of the repository
    note, check = NOTES[number].answer, CHECKS[number]
    assert note and check(note) is None
    told = [check(each) for each in NOTES[number].mistakes]
    assert all(told) and len(set(told)) == len(told)


def test_the_page_has_every_lesson() -> None:
    """With minutes and needs of its head, and the question of its exercise."""
    assert set(LESSONS) == set(NOTES) == set(CHECKS)
    text = "\n".join(overview([*LESSONS.values()]))
    for lesson in LESSONS.values():
        [row] = [line for line in text.splitlines() if f"]({lesson.path.name})" in line]
        assert f"| {lesson.head.minutes:g} | {', '.join(map(str, lesson.head.needs))} |" in row
        assert lesson.sections["An exercise"] in text
    assert f"| all | {sum(each.head.minutes for each in LESSONS.values()):g} |" in text


def test_numbers_of_the_notes_are_those_of_the_plain_calculation() -> None:
    assert 1 / math.sqrt(2 * math.pi) == pytest.approx(0.399, abs=5e-4)
    assert math.sqrt(2) / math.pi == pytest.approx(0.450, abs=5e-4)
    assert t_critical(9, 0.05) * 0.005 / math.sqrt(10) == pytest.approx(0.0036, abs=5e-5)
    assert int(NOTES[9].answer) == 2 * 3 * 200 * 5 * 2 * 16 * 4
