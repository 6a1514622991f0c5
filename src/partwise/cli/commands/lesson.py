"""`lesson`: a lesson in the terminal, section by section."""

import math
import sys
from pathlib import Path
from typing import Any

import typer

from partwise.cli.commands.lesson_text import LessonText, screens, without_links
from partwise.cli.terminal import console, format_duration, print_command, print_json, table
from partwise.comparison.ledger.predictions import Prediction
from partwise.comparison.plan_file import PLAN_FILE
from partwise.config import ConfigError
from partwise.lessons.answers import Measured, find_value, read_answer
from partwise.lessons.exercises import CHECKS
from partwise.lessons.findings import answer_table, claims_lines, verdict_lines
from partwise.lessons.lesson import PICTURE, SECTIONS, Lesson, all_lessons, find_lesson, with_listings
from partwise.lessons.predictions import find_prediction, record_prediction
from partwise.lessons.progress import read_progress, write_progress
from partwise.lessons.show import print_answer, print_outcome, print_picture, print_prediction, print_share
from partwise.lessons.slides import slides
from partwise.messages import quantity
from partwise.plots.layout import write_text

PATIENCE = 5.0
"""Minutes that a reader may be asked to wait; beyond, the stored answer is offered first."""


BESIDE = 4
"""Lines of a screen that are not the text: the heading, and the question whether to go on."""


class LeftError(Exception):
    """The reader stops for now."""


def list_lessons(as_json: bool = False) -> None:
    """Print the lessons, how long each takes, and where the reader is."""
    reached = read_progress()
    if as_json:
        print_json(
            [
                {
                    "lesson": each.number,
                    "title": each.head.title,
                    "minutes": each.head.minutes,
                    "at": reached.get(str(each.number), ""),
                }
                for each in all_lessons().values()
            ]
        )
        return
    rows = [
        [str(lesson.number), lesson.head.title, f"{lesson.head.minutes:g}", reached.get(str(lesson.number), "")]
        for lesson in all_lessons().values()
    ]
    console.print(
        table(
            "The measured course: a question, your prediction, a run",
            ["lesson", "question", "minutes", "you are at"],
            rows,
        )
    )
    if following := next((number for number in all_lessons() if reached.get(str(number)) != "done"), None):
        console.print(f"next: `partwise lesson {following}`; with --stored it trains nothing", markup=False)
    print_share()


def write_slides(number: int | None, file: str) -> None:
    """Write a lesson, or all, as slides."""
    path = Path(file)
    if path.suffix not in (".html", ".htm"):
        raise ConfigError(f"--slides {file}: expected the name of an HTML file, such as slides.html")
    lessons = list(all_lessons().values()) if number is None else [find_lesson(number)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, slides(lessons))
    console.print(f"{path}: {quantity(len(lessons), 'lesson')}, to open in a browser", markup=False, soft_wrap=True)


def run_lesson(
    number: int,
    predict: str | None,
    asks: bool,
    stored: bool,
    check: str | None,
    first_seed: int,
    restart: bool,
    as_json: bool = False,
) -> None:
    """Go through a lesson, from where the reader stopped, or check an answer to its exercise."""
    lesson = find_lesson(number)
    if check is not None:
        raise typer.Exit(check_exercise(lesson, check, as_json))
    reader = Reader(lesson, Prediction.parse(predict) if predict else None, asks, stored, first_seed)
    reader.interactive = reader.interactive and not as_json
    reader.refuse_missing_prediction()
    try:
        reader.read(
            SECTIONS[0] if restart or not console.is_terminal else read_progress().get(str(number), SECTIONS[0])
        )
    except LeftError:
        console.print(f"to continue: partwise lesson {number}", markup=False, soft_wrap=True)
    if as_json:
        print_json(reader.document())


class Reader:
    """One reader of one lesson."""

    def __init__(
        self, lesson: Lesson, prediction: Prediction | None, asks: bool, stored: bool, first_seed: int
    ) -> None:
        self.lesson, self.prediction, self.asks, self.stored = lesson, prediction, asks, stored
        self.first_seed = first_seed
        self.interactive = console.is_terminal and sys.stdin.isatty()
        self.folder = f"runs/{lesson.name}" + (f"-from-{first_seed}" if first_seed else "")
        self.measured: Measured | None = None
        self.precision: str | None = None

    def refuse_missing_prediction(self) -> None:
        """Raise ConfigError before anything runs, if nobody can be asked."""
        needed = self.asks and self.prediction is None and not self.interactive and not self.stored
        if needed and find_prediction(self.folder) is None:
            raise ConfigError(
                f"lesson {self.lesson.number} asks for a prediction, and there is no terminal to ask: add --predict LOW,HIGH "
                f"for {self.lesson.asked_text} ({self.lesson.asked.unit}), or --no-predict"
            )

    def read(self, start: str) -> None:
        head = self.lesson.head
        console.print(f"Lesson {self.lesson.number}: {head.title}", style="bold", markup=False)
        lessons = "lessons" if len(head.needs) > 1 else "lesson"
        needs = f" It builds on {lessons} {', '.join(map(str, head.needs))}." if head.needs else ""
        words = ", ".join(f"`partwise parts {word}`" for word in head.words)
        console.print(f"About {head.minutes:g} minutes.{needs} See also: {words}", markup=False)
        for section in SECTIONS[SECTIONS.index(start) if start in SECTIONS else 0 :]:
            if self.interactive:
                write_progress(self.lesson.number, section)
            self.show(section)
        write_progress(self.lesson.number, "done")

    def show(self, section: str) -> None:
        """Print a section: its text, and what only a run can add; the answer's text explains numbers, which come first."""
        if section == "The answer":
            self.answer()
            self.go_on()
        self.page(section)
        match section:
            case "The problem":
                if self.lesson.head.problem:
                    self.go_on()
                    console.print()
                    print_picture(read_answer(self.lesson), before=True)
            case "Your prediction":
                if self.predict():  # the reader has just pressed Enter
                    return
            case "The run":
                if not self.stored:
                    self.go_on()  # commands and progress fill a screen of their own
                self.train()
            case "An exercise":
                self.exercise()
                return
        self.go_on()

    def page(self, section: str) -> None:
        """The text, a screen at a time."""
        text = without_links(PICTURE.sub("", with_listings(self.lesson.sections[section])))
        heading = "" if section == "The answer" else section  # the numbers above have it
        if not console.is_terminal:
            console.print("\n\n".join(["", *([heading] if heading else []), text]), markup=False)
            return
        height = console.height if self.interactive else sys.maxsize
        for number, screen in enumerate(screens(text, console.width, height - BESIDE)):
            if number:
                self.go_on()
            console.print()
            if not number and heading:
                print_heading(heading)
            console.print(LessonText(screen))

    def go_on(self) -> None:
        if not self.interactive:
            return
        answer = console.input("\n[dim]Enter continues, q stops: [/]")
        if answer.strip().lower() in ("q", "quit"):
            raise LeftError

    def predict(self) -> bool:
        """Ask, unless the ledger has a prediction or the run has started. True if the reader was asked."""
        asked, known = self.lesson.asked, find_prediction(self.folder)
        if known:
            console.print(f"your prediction, in the ledger: {known} {asked.unit}", markup=False)
            self.prediction = known
            return False
        if (Path(self.folder) / PLAN_FILE).exists():
            console.print("this run has started: it is too late for a prediction", markup=False)
            self.prediction = None
            return False
        asks = self.prediction is None and self.asks and self.interactive
        while asks and self.prediction is None:
            text = console.input(f"{self.lesson.asked_text} ({asked.unit}), as LOW,HIGH: ", markup=False)
            if not text.strip():  # perhaps the Enter that a reader is used to press
                text = console.input("LOW,HIGH, or Enter once more for no prediction: ", markup=False)
            if not text.strip():
                return True
            try:
                self.prediction = Prediction.parse(text)
            except ConfigError as error:
                console.print(str(error), style="red", markup=False)
        if self.prediction and not self.stored:
            self.prediction = record_prediction(self.lesson, self.folder, self.prediction)
            console.print(f"in the ledger: {self.prediction} {asked.unit}", markup=False)
        return asks

    def train(self) -> None:
        """Run the comparisons, or take the stored answer where this machine needs longer than its reader may have."""
        if self.stored:
            return
        from partwise.cli.commands.compare_output import say_stopped, start_progress
        from partwise.lessons.course import LessonRun, check_first_seed

        check_first_seed(self.first_seed, self.lesson.seeds)
        run = LessonRun.plan(self.lesson, self.first_seed)
        for comparison in run.comparisons.values():
            print_command(comparison.command)
        minutes = run.minutes_left
        console.print(f"this machine needs about {format_duration(60 * minutes)}", markup=False)
        if self.interactive and minutes > PATIENCE:
            self.stored = console.input("r runs it, Enter reads the stored answer: ").strip().lower() != "r"
            if self.stored:
                return
        try:
            self.measured = run.run(
                start_progress,
                lambda models: console.print(f"measuring {quantity(models, 'trained model')}", markup=False),
            )
        except KeyboardInterrupt as error:
            say_stopped(error, f"To resume:\n  partwise lesson {self.lesson.number}")
            raise
        self.precision, _ = run.facts()

    def answer(self) -> None:
        """The reader's values beside the stored ones, the verdicts, and what became of the prediction."""
        if self.measured is None and not self.stored:  # resumed after the run
            self.train()
        console.print()
        print_heading("The answer")
        answer = read_answer(self.lesson, self.precision)
        print_answer(answer, self.measured, self.go_on)
        if self.measured:
            print_prediction(self.lesson, self.folder, self.measured)
        elif self.prediction:  # the ledger has none of what nobody ran
            print_outcome(self.prediction, answer.expected(self.lesson.asked).value)

    def document(self) -> dict[str, Any]:
        """What `--json` prints: the answer that the text shows."""
        lesson, answer = self.lesson, read_answer(self.lesson, self.precision)
        prediction = find_prediction(self.folder) or self.prediction
        value = find_value(lesson.asked, self.measured) if self.measured else None
        value = value if value is not None and math.isfinite(value) else None
        expected = answer.expected(lesson.asked)
        return {
            "lesson": lesson.number,
            "title": lesson.head.title,
            "asked": lesson.asked_text,
            "unit": lesson.asked.unit,
            "prediction": {"low": prediction.low, "high": prediction.high} if prediction else None,
            "value": value,
            "inside": None if value is None or prediction is None else value in prediction,
            "stored": {"value": expected.value, "low": expected.low, "high": expected.high},
            "table": list(answer_table(answer, self.measured)),
            "verdicts": list(verdict_lines(answer, self.measured)),
            "claims": list(claims_lines(lesson)),
        }

    def exercise(self) -> None:
        """Ask until the answer is right, or the reader has enough."""
        number = self.lesson.number
        console.print(f'`partwise lesson {number} --check "ANSWER"` checks it', markup=False)
        while self.interactive:
            text = console.input("your answer (Enter leaves it): ")
            if not text.strip() or check_exercise(self.lesson, text) == 0:
                return


def print_heading(section: str) -> None:
    console.print(section, style="bold underline", markup=False)


def check_exercise(lesson: Lesson, text: str, as_json: bool = False) -> int:
    """Print what is right or wrong; the exit status."""
    wrong = CHECKS[lesson.number](text)
    console.print(wrong or "right", style="red" if wrong else "green", markup=False)
    if as_json:
        print_json({"lesson": lesson.number, "right": not wrong, "said": wrong or "right"})
    return 1 if wrong else 0
