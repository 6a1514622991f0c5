"""Predictions: what a reader expects of a lesson, in the ledger before the first run, and how often it was right."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partwise.comparison.ledger.chain import ChainEntry
from partwise.comparison.ledger.project import project_ledger
from partwise.config import ConfigError
from partwise.lessons.lesson import Lesson

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"\s*({NUMBER})\s*(?:,|;|\.\.|to|\s)\s*({NUMBER})\s*")

PREDICTED, ANSWERED = "prediction", "predicted result"
"""Kinds of records."""


@dataclass(frozen=True)
class Prediction:
    """A range; its sign says which arm the reader expects to be better."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @classmethod
    def parse(cls, text: str) -> "Prediction":
        """`-0.1,0.02`, `-0.1 to 0.02` or `-0.1 0.02`. Raises ConfigError."""
        found = RANGE.fullmatch(text)
        if found is None:
            raise ConfigError(f"prediction {text!r}: expected two numbers, the ends of a range, such as -0.05,0.02")
        low, high = float(found[1]), float(found[2])
        if low > high:
            raise ConfigError(f"prediction {text!r}: the first number is the smaller one: {high:g},{low:g}")
        return cls(low, high)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def record_prediction(lesson: Lesson, folder: str, prediction: Prediction) -> Prediction:
    """Add the prediction to the ledger, unless it has one of the same run, which stands. Returns the one that stands."""

    def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
        if stored_prediction(records, folder):
            return None
        quantity = {"quantity": lesson.head.predict, "text": lesson.asked.text, "unit": lesson.asked.unit}
        place = {"lesson": lesson.number, "folder": folder, **quantity}
        return {"kind": PREDICTED, **place, "low": prediction.low, "high": prediction.high}

    project_ledger().append(content)
    return find_prediction(folder) or prediction


def find_prediction(folder: str) -> Prediction | None:
    """The prediction for the lesson's run in a folder."""
    return stored_prediction(project_ledger().read(), folder)


def stored_prediction(records: Sequence[ChainEntry], folder: str) -> Prediction | None:
    for record in records:
        if record.content["kind"] == PREDICTED and record.content["folder"] == folder:
            return Prediction(record.content["low"], record.content["high"])
    return None


def record_answer(lesson: Lesson, folder: str, value: float, prediction: Prediction) -> None:
    """Add the value that was predicted to the ledger, once."""

    def content(records: Sequence[ChainEntry]) -> dict[str, Any] | None:
        if any(each.content["kind"] == ANSWERED and each.content["folder"] == folder for each in records):
            return None
        place = {"lesson": lesson.number, "folder": folder, "quantity": lesson.head.predict}
        return {"kind": ANSWERED, **place, "value": value, "inside": value in prediction}

    project_ledger().append(content)


def share_inside() -> tuple[int, int]:
    """How many predictions of this project's ledger held, and how many were answered."""
    answered = [each.content for each in project_ledger().read() if each.content["kind"] == ANSWERED]
    return sum(each["inside"] for each in answered), len(answered)
