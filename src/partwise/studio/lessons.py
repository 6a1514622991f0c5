"""The lessons as pages show them: the text up to the answer, the reader's prediction, and the command that runs them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from partwise.comparison.ledger.predictions import Prediction
from partwise.config import ConfigError
from partwise.lessons.answers import read_answer
from partwise.lessons.exercises import FILE_ANSWERS
from partwise.lessons.findings import draw_picture, picture_table
from partwise.lessons.lesson import PICTURE, Lesson, all_lessons, find_lesson, with_listings
from partwise.lessons.predictions import stored_prediction
from partwise.lessons.progress import read_progress
from partwise.lessons.slides import encode, text_and_code
from partwise.studio.comparisons import Comparisons
from partwise.studio.models import option
from partwise.studio.processes import Processes
from partwise.studio.questions import predict_words

BEFORE, AFTER = ("The problem", "The idea", "Your prediction", "The run"), ("The answer", "An exercise")
"""The sections that a page shows before the run has ended, and those that explain its answer."""

ANSWER = r"[A-Za-z0-9 .,:;=+%_()&-]{1,200}"
"""Numbers, words and overrides: every answer to an exercise but a path."""
IN_A_TERMINAL = (
    "The check runs the file that is the answer, and the studio runs no file that was not named when it was started: "
    "check it in a terminal."
)


@dataclass
class Lessons:
    """The lessons of a folder's reader."""

    comparisons: Comparisons
    processes: Processes

    def listed(self) -> list[dict[str, Any]]:
        """Every lesson with the place that its reader has reached."""
        reached = read_progress(self.comparisons.folder)
        return [
            {
                "number": each.number,
                "title": each.head.title,
                "question": each.head.question,
                "minutes": each.head.minutes,
                "at": reached.get(str(each.number), ""),
                **self._state(each),
            }
            for each in all_lessons().values()
        ]

    def content(self, number: int) -> dict[str, Any]:
        """The text and the picture of a lesson; of its answer only after its runs. Raises ConfigError."""
        lesson, state = find_lesson(number), self.state(number)
        ended = state["state"] == "finished"
        return {
            **state,
            "title": lesson.head.title,
            "question": lesson.head.question,
            "minutes": lesson.head.minutes,
            "needs": lesson.head.needs,
            "asked": lesson.asked_text,
            "unit": lesson.asked.unit,
            "sections": [{"title": each, "blocks": list(blocks(lesson, each))} for each in BEFORE + AFTER * ended],
            "figure": figure(number, before=True) if lesson.head.problem else None,
            "unchecked": IN_A_TERMINAL if number in FILE_ANSWERS else "",
            **({"answer_figure": figure(number, before=False)} if ended else {}),
        }

    def state(self, number: int) -> dict[str, Any]:
        """How far the runs of a lesson are, and the prediction that the ledger has. Raises ConfigError."""
        return self._state(find_lesson(number))

    def _state(self, lesson: Lesson) -> dict[str, Any]:
        names = folders(lesson)
        states = [self.comparisons.state(each) for each in names if self.comparisons.exists(each)]
        counts = [each["counts"] for each in states]
        alive = self.processes.is_alive(lesson.name) or any(each["state"] == "running" for each in states)
        failure = "" if alive else self.processes.failure(lesson.name)
        ended = len(states) == len(names) and all(each["state"] == "finished" for each in states)
        found = stored_prediction(self.comparisons.records(), f"runs/{lesson.name}")
        state = "running" if alive else "finished" if ended else "failed" if failure else "stopped" if states else "new"
        return {
            "number": lesson.number,
            "name": lesson.name,
            "state": state,
            "error": failure,
            "ended": sum(each.get(status, 0) for each in counts for status in ("done", "diverged", "failed")),
            "trials": sum(map(trials, lesson.head.runs.values())),
            "prediction": {"low": found.low, "high": found.high} if found else None,
            "command": " ".join(["partwise", *self._words(lesson, found)]),
        }

    def _words(self, lesson: Lesson, prediction: Prediction | None) -> list[str]:
        return ["lesson", str(lesson.number), *predict_words(prediction)]

    def start(self, number: int, prediction: Prediction | None) -> None:
        """Start or resume the runs of a lesson; the command records the prediction first. Raises ConfigError."""
        lesson = find_lesson(number)
        before = self._state(lesson)
        if before["state"] in ("running", "finished"):
            raise ConfigError(f"lesson {number}: its runs are {before['state']}")
        words = self._words(lesson, None if before["prediction"] else prediction)
        if before["prediction"] is None and prediction is None:
            if before["state"] == "new":
                raise ConfigError(f"lesson {number} asks for a prediction before its first run")
            words.append("--no-predict")  # a terminal has started it without one
        self.processes.start(lesson.name, words, {"lesson": number})

    def interrupt(self, number: int) -> None:
        """Ask the process that runs a lesson to save and end. Raises ConfigError if there is none."""
        lesson = find_lesson(number)
        for name in folders(lesson):
            if self.comparisons.exists(name) and self.comparisons.state(name)["state"] == "running":
                self.comparisons.interrupt(name)
                return
        self.comparisons.interrupt(lesson.name)

    def answer_words(self, number: int) -> list[str]:
        """The command that prints the answer. Raises ConfigError before the runs have ended."""
        self._refuse_before_end(number)
        return ["lesson", str(number), "--no-predict", "--json"]

    def check_words(self, number: int, answer: Any) -> list[str]:
        """The command that checks an answer to the exercise. Raises ConfigError for one that the studio does not check."""
        self._refuse_before_end(number)
        if number in FILE_ANSWERS:
            raise ConfigError(IN_A_TERMINAL)
        if not isinstance(answer, str) or not re.fullmatch(ANSWER, answer):
            raise ConfigError("answer: expected 1 to 200 letters, digits, spaces and . , : ; = + - % _ ( ) &")
        return ["lesson", str(number), *option("--check", answer)]

    async def check(self, words: list[str]) -> dict[str, Any]:
        """What `check_words` says of an answer, and the command as a terminal takes it. Raises ConfigError."""
        found = await self.processes.query([*words, "--json"], answers=(0, 1))
        return {**found, "command": shlex.join(["partwise", *words])}

    def _refuse_before_end(self, number: int) -> None:
        if self.state(number)["state"] != "finished":
            raise ConfigError(f"lesson {number}: its runs have not ended")


def folders(lesson: Lesson) -> list[str]:
    """The names of the comparisons that a lesson runs."""
    return [lesson.name if key == "main" else f"{lesson.name}-{key}" for key in lesson.head.runs]


def trials(request: Any) -> int:
    """The runs of a comparison of a lesson."""
    return int(request.seeds) * (1 + bool(request.change) + len(request.arms))


def blocks(lesson: Lesson, section: str) -> Iterator[dict[str, str]]:
    """The paragraphs and listings of a section, as text."""
    for kind, text in text_and_code(PICTURE.sub("", with_listings(lesson.sections[section]))):
        yield {"kind": kind, "text": text}


@cache
def figure(number: int, before: bool) -> dict[str, Any]:
    """The figure of the problem or of the answer: the address of an image, and its values as a table."""
    answer = read_answer(find_lesson(number))
    table = picture_table(answer, before)
    return {"picture": encode(draw_picture(answer, before)), "table": [table.columns, *table.rows]}
