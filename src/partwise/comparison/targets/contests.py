"""Rules of public contests as presets: contest_rules.json has each with its source, its date and what it gets wrong."""

import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from partwise.comparison.targets.target import Target
from partwise.config import ConfigError, did_you_mean


@dataclass(frozen=True)
class Rule:
    """One rule of a contest."""

    name: str
    title: str
    source: str
    """Repository, file and commit that state it."""
    dated: str
    """The date of that commit."""
    alpha: float
    value: float | None = None
    """The target; None if it follows from the last record."""
    gain: float | None = None
    """How much lower than the last record the mean must be."""
    unit: str = ""
    known_sd: float | None = None
    errs: tuple[str, ...] = ()
    """What the rule gets wrong, with rates that tests/target_errors.py simulates."""

    def target(self, record: float | None, looks: tuple[int, ...] = ()) -> Target:
        """The target of this rule. Raises ConfigError for a record that is missing or that the rule does not take."""
        if self.gain is None and record is not None:
            raise ConfigError(
                f"--record {record:g}: --rule {self.name} has a fixed target, {self.value:g}; leave it out"
            )
        if self.gain is not None and record is None:
            raise ConfigError(f"--rule {self.name} needs --record, the mean of the last record in {self.unit}")
        value = self.value if self.value is not None else (record or 0.0) - (self.gain or 0.0)
        source = f"the rule, {self.source}" if self.known_sd is not None else ""
        return Target(value, self.alpha, True, looks, self.known_sd, source)

    def sentences(self) -> list[str]:
        """The rule, its source and what it gets wrong."""
        return [f"Rule: {self.title}. Source: {self.source}, {self.dated}.", *(f"Note: {each}" for each in self.errs)]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "errs": list(self.errs)}


@cache
def rules() -> dict[str, Rule]:
    stored = json.loads(Path(__file__).with_name("contest_rules.json").read_text(encoding="utf-8"))
    return {name: Rule(name, **{**rule, "errs": tuple(rule["errs"])}) for name, rule in stored.items()}


def find_rule(name: str) -> Rule:
    """Raises ConfigError for an unknown rule."""
    if name not in rules():
        raise ConfigError(f"--rule {name}: unknown{did_you_mean(name, rules())}")
    return rules()[name]
