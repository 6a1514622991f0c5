"""The assignment of a class, `course.yaml`: one baseline and its rules for all, and the seeds of each student."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import JsonValue

from partwise.comparison.results.value import Value
from partwise.config import ConfigError, digest
from partwise.config.yaml import read_yaml

MARK = "assignment"
"""The key that tells the file of an assignment from that of an experiment."""

HEADER = """\
# An assignment for a class. `partwise assign` wrote it; its hash covers every line below.
# Student K runs   partwise compare {name} CHANGE --student K
# The teacher runs partwise collect HAND-INS --course {name}
"""


class Assignment(Value):
    """What all students of a class have in common; `plan` and everything above it describe the same comparison."""

    assignment: Literal[1] = 1
    preset: str
    data: str | None
    common: tuple[str, ...]
    families: tuple[str, ...]
    """The families of parts; a student changes one of them."""
    students: int
    seeds: int
    first_seed: int
    """The first seed of number 0, the teacher."""
    margin: float
    alpha: float
    failure: float | None
    metric: str
    version: str
    sources: str
    """SHA-256 of the package's source files, from which the initial weights of a configuration and a seed follow."""
    data_hash: str
    plan: dict[str, JsonValue]
    """What `fixed_part` returns for the plan of every student."""
    hash: str = ""

    @property
    def computed_hash(self) -> str:
        """SHA-256 of everything but `hash`."""
        return digest({key: value for key, value in self.to_dict().items() if key != "hash"})

    @property
    def plan_hash(self) -> str:
        return digest(self.plan)

    def seeds_of(self, student: int) -> range:
        """The seeds of a student's number: no two numbers share one."""
        start = self.first_seed + student * self.seeds
        return range(start, start + self.seeds)

    def student_of(self, first_seed: int) -> int | None:
        """The number whose seeds begin with this one; None if no number's do."""
        number, rest = divmod(first_seed - self.first_seed, self.seeds)
        return number if not rest and 0 <= number <= self.students else None

    def request(self, student: int, change: list[str]) -> dict[str, Any]:
        """The fields of the `Request` of a student's comparison. Raises ConfigError for a number that the class lacks."""
        if not 0 <= student <= self.students:
            raise ConfigError(
                f"--student {student}: the numbers of this class are 1 to {self.students}, and 0 for the teacher"
            )
        fixed = {key: getattr(self, key) for key in ("preset", "data", "seeds", "margin", "alpha", "failure", "metric")}
        return {
            **fixed,
            "common": list(self.common),
            "change": change,
            "first_seed": self.seeds_of(student).start,
        }

    def to_yaml(self, name: str) -> str:
        """The text of the file: a line per key, so that a teacher can read it, and JSON for values."""
        values = self.model_copy(update={"hash": self.computed_hash}).to_dict()
        return HEADER.format(name=name) + "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file of an assignment. Raises ConfigError, also if a line was edited."""
        if not path.exists():
            raise ConfigError(f"{path}: no such file; write it with `partwise assign {path}`, or give --course FILE")
        return cls.from_values(read_yaml(path), path)

    @classmethod
    def from_values(cls, values: Mapping[str, Any], path: Path) -> Self:
        """As `read`, from the values of the file."""
        if values.get(MARK) != 1:
            raise ConfigError(f"{path} is not an assignment of this version: write one with `partwise assign`")
        found = cls.from_dict(values, str(path))
        if found.hash != found.computed_hash:
            raise ConfigError(
                f"{path} was changed after `partwise assign` wrote it: restore it, or assign under another name"
            )
        return found


def fixed_part(identity: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's identity without the student's own: the changed arm, its claim, and the first seed.

    Raises ConfigError if it has no arms, as no plan of this version does.
    """
    arms = identity.get("arms")
    if not isinstance(arms, list) or not arms or not all(isinstance(arm, Mapping) for arm in arms):
        raise ConfigError("its plan has no arms")
    own = ("arms", "claims", "first_seed")
    return {"baseline": dict(arms[0]), **{key: value for key, value in identity.items() if key not in own}}
