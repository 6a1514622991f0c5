"""Predictions: what a reader expects of a lesson, in the ledger before the first run, and how often it was right."""

from collections.abc import Sequence
from typing import Any

from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.ledger.predictions import ANSWERED, PREDICTED, Prediction
from partwise.comparison.ledger.project import project_ledger
from partwise.lessons.lesson import Lesson


def record_prediction(lesson: Lesson, folder: str, prediction: Prediction) -> Prediction:
    """Add the prediction to the ledger, unless it has one of the same run, which stands. Returns the one that stands."""

    def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
        if stored_prediction(records, folder):
            return None
        quantity = {"quantity": lesson.head.predict, "text": lesson.asked_text, "unit": lesson.asked.unit}
        place = {"lesson": lesson.number, "folder": folder, **quantity}
        return {"kind": PREDICTED, **place, "low": prediction.low, "high": prediction.high}

    project_ledger().append(content)
    return find_prediction(folder) or prediction


def find_prediction(folder: str) -> Prediction | None:
    """The prediction for the lesson's run in a folder."""
    return stored_prediction(project_ledger().read(), folder)


def stored_prediction(records: Sequence[ChainEntry], folder: str) -> Prediction | None:
    for record in records:
        if record.content["kind"] == PREDICTED and is_of_lesson(record, folder):
            return Prediction(record.content["low"], record.content["high"])
    return None


def record_answer(lesson: Lesson, folder: str, value: float, prediction: Prediction) -> None:
    """Add the value that was predicted to the ledger, once."""

    def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
        if any(each.content["kind"] == ANSWERED and is_of_lesson(each, folder) for each in records):
            return None
        place = {"lesson": lesson.number, "folder": folder, "quantity": lesson.head.predict}
        return {"kind": ANSWERED, **place, "value": value, "inside": value in prediction}

    project_ledger().append(content)


def share_inside() -> tuple[int, int]:
    """How many predictions of this project's ledger held, and how many were answered."""
    answered = [each.content for each in project_ledger().read() if each.content["kind"] == ANSWERED]
    return sum(each["inside"] for each in answered), len(answered)


def is_of_lesson(record: ChainEntry, folder: str) -> bool:
    """Whether a record is of a lesson's run in a folder; comparisons predict as well."""
    return "lesson" in record.content and bool(record.content["folder"] == folder)
