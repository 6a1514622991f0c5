"""A lesson: a page of docs/lessons. Its head says what runs, what is measured and what is asked; its text is for all forms.

The command line, the site and the notebook show the same page. Nothing here imports torch.
"""

import ast
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field

from partwise.ablation.request import Request
from partwise.config import Config, ConfigError
from partwise.config.yaml import parse_mapping
from partwise.files import PACKAGE

Statistic = Literal["mean", "sd", "share"]

CHOOSING = range(1000, 2000)
"""The seeds with which the settings of a lesson were chosen."""
STORED = range(2000, 3000)
"""The seeds of stored answers. A reader's seeds are neither."""

HEAD = re.compile(r"\A---\n(.*?)\n---\n(.*)\Z", re.DOTALL)
GENERATED = re.compile(r"<!-- answer -->.*?<!-- end -->\n?", re.DOTALL)
"""What a page repeats from the stored answer: `make generate` writes it, and a terminal prints its own."""
PICTURE = re.compile(r"!\[([^]]*)\]\(\S+\)\n*")
LISTING = re.compile(r"```\{literalinclude\} \S*?/?from_scratch/(\S+)\n:pyobject: ([\w.]+)\n(?::\S+:.*\n)*```\n")
"""A function, class or method (`Class.method`) of examples/from_scratch."""

DEFINITIONS = (ast.FunctionDef, ast.ClassDef)

SECTIONS = ("The problem", "The idea", "Your prediction", "The run", "The answer", "An exercise")
"""The headings of every lesson, in this order."""


class Quantity(Config):
    """A number that a lesson finds: over seeds, the mean, the SD or the share of a measure of one arm, or of a difference."""

    text: str = Field(description="What it is, as the end of a sentence.")
    run: str = "main"
    arm: str
    or_arms: list[str] = Field(
        default_factory=list, description="Of each seed, the lowest value of `arm` and these counts."
    )
    against: str | None = Field(None, description="The arm that is subtracted, seed by seed.")
    measure: str = Field(
        "loss",
        description="`loss`, `loss@STEP`, a measure of the trained model, or `loss above X`: 1 for such a run, or 0.",
    )
    statistic: Statistic = "mean"
    unit: str = "nats per character"


class Head(Config):
    """What stands above the text of a lesson."""

    title: str
    question: str = Field(description="One sentence.")
    minutes: float = Field(gt=0, description="On two cores without bfloat16 products, start included.")
    needs: list[int] = Field(default_factory=list, description="The lessons that it builds on.")
    words: list[str] = Field(default_factory=list, description="Words for `partwise parts`.")
    runs: dict[str, Request] = Field(description="The comparisons that it runs.")
    measures: dict[str, list[str]] = Field(default_factory=dict, description="Run -> measures of its trained models.")
    quantities: dict[str, Quantity]
    labels: dict[str, str] = Field(default_factory=dict, description="Arm -> its name in figures.")
    picture: Literal["curves", "dots", "bars", "search"] = Field(
        "curves", description="What the figure shows: losses, quantities, or a search over ideas."
    )
    references: dict[str, float] = Field(
        default_factory=dict, description="Losses that a figure of curves has as horizontal lines, by name."
    )
    real: list[str] = Field(default_factory=list, description="The arms of a search that change something.")
    values: str = Field(
        "", description="What all rows of the table of values are, if their names do not say it, such as a difference."
    )
    problem: list[str] = Field(
        description="What the first figure shows of it, which must not tell the predicted quantity."
    )
    predict: str = Field(description="The quantity that the reader predicts.")
    claims: list[str] = Field(
        default_factory=list,
        description="Studies of larger models with the same question; after a space, one comparison, or the start of an arm.",
    )

    @classmethod
    def read(cls, values: Mapping[str, Any], source: str) -> Self:
        runs = {name: Request.from_dict(run, f"{source}: runs.{name}.") for name, run in values["runs"].items()}
        quantities = {
            name: Quantity.from_dict(each, f"{source}: {name}.") for name, each in values["quantities"].items()
        }
        head = cls.from_dict({**values, "runs": runs, "quantities": quantities}, f"{source}: ")
        if head.predict not in quantities:
            raise ConfigError(f"{source}: predict={head.predict}: expected one of {', '.join(quantities)}")
        return head


@dataclass(frozen=True)
class Lesson:
    """A lesson by its number: `head`, and the text of each section as Markdown."""

    number: int
    path: Path
    head: Head
    sections: Mapping[str, str]

    @property
    def name(self) -> str:
        """`lesson-03`: the name of its folder of runs."""
        return f"lesson-{self.number:02}"

    @property
    def asked(self) -> Quantity:
        """The quantity that the reader predicts."""
        return self.head.quantities[self.head.predict]

    @property
    def asked_text(self) -> str:
        """What the reader predicts, without the table around it."""
        return f"{self.head.values}, {self.asked.text}" if self.head.values else self.asked.text

    @property
    def seeds(self) -> int:
        """The number of the reader's seeds."""
        return next(iter(self.head.runs.values())).seeds

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ConfigError for a page that is no lesson."""
        parsed = HEAD.match(path.read_text(encoding="utf-8"))
        if parsed is None:
            raise ConfigError(f"{path}: expected a head between two lines of ---")
        number = int(path.name[:2])
        head = Head.read(parse_mapping(parsed[1], str(path)), path.name)
        return cls(number, path, head, split_sections(GENERATED.sub("", parsed[2]), path))


def split_sections(text: str, path: Path) -> dict[str, str]:
    """The text below each heading of the second level."""
    pieces = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    found = {title: body.strip() + "\n" for title, body in zip(pieces[1::2], pieces[2::2], strict=True)}
    if tuple(found) != SECTIONS:
        raise ConfigError(f"{path}: expected the headings {', '.join(SECTIONS)}")
    return found


def lessons_folder() -> Path:
    """Where the pages are: in the installed package, or in docs of the checkout."""
    installed = PACKAGE / "lessons" / "pages"
    return installed if installed.exists() else PACKAGE.parents[1] / "docs" / "lessons"


def examples_folder() -> Path:
    """Where the plain programs of the course are: in the installed package, or in examples of the checkout."""
    installed = PACKAGE / "lessons" / "from_scratch"
    return installed if installed.exists() else PACKAGE.parents[1] / "examples" / "from_scratch"


def all_lessons() -> dict[int, Lesson]:
    return {lesson.number: lesson for lesson in map(Lesson.read, sorted(lessons_folder().glob("[0-9][0-9]-*.md")))}


def find_lesson(number: int) -> Lesson:
    """Raises ConfigError for an unknown number."""
    found = next(lessons_folder().glob(f"{number:02}-*.md"), None)
    if found is None:
        known = ", ".join(path.name[:2].lstrip("0") for path in sorted(lessons_folder().glob("[0-9][0-9]-*.md")))
        raise ConfigError(f"lesson {number}: there is no such lesson; choose one of {known}")
    return Lesson.read(found)


@cache
def name_lesson(number: int) -> str:
    """`3, "Where am I?"`. Raises ConfigError for an unknown number."""
    return f'{number}, "{find_lesson(number).head.title}"'


def with_listings(text: str) -> str:
    """The text with the functions that it names in place of their names."""
    return LISTING.sub(lambda match: f"```python\n{listing(match[1], match[2])}```\n", text)


def program(file: str) -> str:
    """The functions of a file of examples/from_scratch, without what it prints as a script."""
    source = (examples_folder() / file).read_text(encoding="utf-8")
    return source.partition('\n\nif __name__ == "__main__":')[0].rstrip() + "\n"


def listing(file: str, name: str) -> str:
    """The source of a function, class or method of examples/from_scratch."""
    source = (examples_folder() / file).read_text(encoding="utf-8")
    found: ast.Module | ast.FunctionDef | ast.ClassDef = ast.parse(source)
    for each in name.split("."):  # a method within its class
        named = [node for node in found.body if isinstance(node, DEFINITIONS) and node.name == each]
        if not named:
            raise ConfigError(f"examples/from_scratch/{file} has no function {name}")
        found = named[0]
    assert not isinstance(found, ast.Module)
    first = min(node.lineno for node in (found, *found.decorator_list))
    return textwrap.dedent("".join(source.splitlines(keepends=True)[first - 1 : found.end_lineno]))
