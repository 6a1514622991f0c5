"""A lesson in a notebook: `run`, `answer` and `check`."""

from typing import Any

from partwise.comparison.progress import ComparisonProgress
from partwise.console import console
from partwise.lessons.answers import Measured, find_value, read_answer
from partwise.lessons.course import LessonRun
from partwise.lessons.exercises import EXERCISES
from partwise.lessons.findings import answer_table, claims_lines, verdict_lines
from partwise.lessons.lesson import find_lesson
from partwise.lessons.predictions import Prediction, find_prediction, record_answer, record_prediction
from partwise.plots.text_table import TextTable


def run(number: int, prediction: tuple[float, float] | None = None) -> Measured:
    """Train a lesson's models, after the prediction is in the ledger. The same call resumes, or repeats the values."""
    lesson = find_lesson(number)
    planned = LessonRun.plan(lesson)
    if prediction and not planned.is_started:
        record_prediction(lesson, f"runs/{lesson.name}", Prediction(*prediction))
    return planned.run(lambda _: ComparisonProgress())


def answer(number: int, measured: Measured) -> None:
    """Print the values beside those of the stored seeds, and what became of the prediction."""
    lesson = find_lesson(number)
    stored = read_answer(lesson)
    columns, *rows = answer_table(stored, measured)
    console.print(TextTable(columns, rows, ""))
    for line in [*verdict_lines(stored, measured), *claims_lines(lesson)]:
        console.print(line, markup=False)
    folder = f"runs/{lesson.name}"
    if prediction := find_prediction(folder):
        value = find_value(lesson.asked, measured)
        record_answer(lesson, folder, value, prediction)
        inside = "inside" if value in prediction else "outside"
        console.print(f"your prediction {prediction}: {value:.4g} is {inside}", markup=False)


def check(number: int, text: Any) -> None:
    """Print what is right or wrong with an answer to the exercise."""
    console.print(EXERCISES[number].check(str(text)) or "right", markup=False)
