"""A lesson in a notebook: `run`, `answer` and `check`. The terminal prints the same answer. Only `run` imports torch."""

from collections.abc import Callable
from typing import Any

from partwise.comparison.ledger.predictions import Prediction
from partwise.comparison.progress import ComparisonProgress
from partwise.console import console
from partwise.lessons.answers import Measured, StoredAnswer, find_value, read_answer
from partwise.lessons.exercises import CHECKS
from partwise.lessons.findings import answer_table, claims_lines, picture_table, verdict_lines
from partwise.lessons.lesson import Lesson, find_lesson
from partwise.lessons.predictions import (
    find_prediction,
    record_answer,
    record_prediction,
    share_inside,
)
from partwise.plots.text_table import TextTable


def run(number: int, prediction: tuple[float, float] | None = None) -> Measured:
    """Train a lesson's models, after the prediction is in the ledger. The same call resumes, or repeats the values."""
    from partwise.lessons.course import LessonRun

    lesson = find_lesson(number)
    planned = LessonRun.plan(lesson)
    if prediction and not planned.is_started:
        record_prediction(lesson, f"runs/{lesson.name}", Prediction(*prediction))
    return planned.run(lambda _: ComparisonProgress())


def answer(number: int, measured: Measured) -> None:
    """Print the values beside those of the stored seeds, and whether the prediction held."""
    lesson = find_lesson(number)
    print_answer(read_answer(lesson), measured)
    print_prediction(lesson, f"runs/{lesson.name}", measured)


def print_answer(stored: StoredAnswer, measured: Measured | None, pause: Callable[[], None] = lambda: None) -> None:
    """The figure as a table, the values, yours too if they are measured, the verdicts, and what larger models said.

    `pause` is called where a screen may be full.
    """
    picture = stored.lesson.head.picture
    if picture in ("curves", "search"):  # of others, the table of values has all
        print_picture(stored, before=False)
    if picture == "search":
        pause()
    columns, *rows = answer_table(stored, measured)
    console.print(TextTable(columns, rows, ""))
    for line in verdict_lines(stored, measured):
        console.print(line, markup=False)
    if stored.lesson.head.claims:
        pause()
    for line in claims_lines(stored.lesson):
        console.print(line, markup=False)


def print_picture(stored: StoredAnswer, before: bool) -> None:
    """The figure of the problem, `before` the prediction, or that of the answer."""
    console.print(f"The figure, as a table, from {stored.seeds} stored seeds:", markup=False)
    console.print(picture_table(stored, before))


def print_prediction(lesson: Lesson, folder: str, measured: Measured) -> None:
    """Whether the prediction in the ledger held, if there is one; the ledger then has the value."""
    if prediction := find_prediction(folder):
        value = find_value(lesson.asked, measured)
        record_answer(lesson, folder, value, prediction)
        print_outcome(prediction, value)
        print_share()


def print_outcome(prediction: Prediction, value: float) -> None:
    inside = "inside" if value in prediction else "outside"
    console.print(f"your prediction {prediction}: {value:.4g} is {inside}", style="bold", markup=False)


def print_share() -> None:
    """How many of the ledger's predictions held."""
    inside, answered = share_inside()
    if answered:
        console.print(f"predictions that held: {inside} of {answered}", markup=False)


def check(number: int, text: Any) -> None:
    """Print what is right or wrong with an answer to the exercise."""
    console.print(CHECKS[number](str(text)) or "right", markup=False)
