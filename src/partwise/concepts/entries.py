"""The concepts and words of `concepts.yaml`, typed."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import Field

from partwise.config import Config
from partwise.config.yaml import read_yaml

SOURCE = Path(__file__).with_name("concepts.yaml")


class ClaimName(Config):
    """A claim of the library of studies."""

    study: str
    comparison: str = ""
    """Its key in the study. Default: the first that has the arm."""
    arm: str
    """The start of the arm's name."""
    says: str = ""
    """What is compared, in words, where the name of the arm does not tell it."""


class Concept(Config):
    """One entry of the file; its comment explains the fields."""

    name: str
    topic: str
    also: list[str] = Field(default_factory=list)
    why: str
    equation: str = ""
    example: str = ""
    where: dict[str, str] = Field(default_factory=dict)
    part_names: list[str] = Field(alias="parts", default_factory=list)
    settings: list[str] = Field(default_factory=list)
    file: str = ""
    results: list[ClaimName] = Field(default_factory=list)
    lesson: int | None = None
    command: str = Field(alias="try")

    @property
    def names(self) -> list[str]:
        return [self.name, *self.also]


@dataclass(frozen=True)
class Word:
    """A word of the project, with one line of explanation."""

    name: str
    topic: str
    meaning: str

    @property
    def names(self) -> list[str]:
        return self.name.split(", ")


@dataclass(frozen=True)
class Entries:
    """The whole file."""

    symbols: dict[str, str]
    """Symbols that mean the same in every equation."""
    shapes: dict[str, str]
    """The letters of the shapes in comments of the code."""
    concepts: list[Concept]
    words: list[Word]

    @property
    def all(self) -> list[Concept | Word]:
        return [*self.concepts, *self.words]


@cache
def entries() -> Entries:
    """The entries in the order of the file. Raises ConfigError."""
    values = read_yaml(SOURCE)
    concepts = [
        Concept.from_dict({"name": name, "topic": topic, **fields}, prefix=name)
        for topic, group in values["concepts"].items()
        for name, fields in group.items()
    ]
    words = [Word(name, topic, meaning) for topic, group in values["words"].items() for name, meaning in group.items()]
    return Entries(values["symbols"], values["shapes"], concepts, words)


def concept_of(part_or_setting: str) -> Concept | None:
    """The concept that a part, such as `ffn=glu`, or a setting belongs to; rather one whose first setting it is."""
    known = entries().concepts
    having = [each for each in known if part_or_setting in (*each.part_names, *each.settings[:1])]
    return next(iter([*having, *(each for each in known if part_or_setting in each.settings)]), None)
