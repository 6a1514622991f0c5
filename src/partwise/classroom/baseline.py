"""Where the values of the baseline are expected: by the teacher's own runs, or by those of the other students."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from partwise.classroom.assignment import Assignment, fixed_part
from partwise.comparison.certificate.certificate import Certificate
from partwise.comparison.certificate.verification import verify
from partwise.comparison.stats.samples import mean, sd, t_critical
from partwise.config import ConfigError

ALPHA = 0.01
"""Any mean of a class that ran what was assigned lies outside its interval with this probability, for normal values."""
MIN_RUNS = 2
ENOUGH = 10
"""Fewer values leave their SD too uncertain; with this many, the interval has 3 SDs of a run to each side."""
MACHINE = ("system", "cpu", "torch")
RUNTIME = ("device", "precision")


@dataclass(frozen=True)
class Baseline:
    """Values of other runs, and where they ran."""

    values: tuple[float, ...]
    machine: dict[str, Any]
    runtime: dict[str, Any]

    @classmethod
    def read(cls, paths: Sequence[Path], assignment: Assignment) -> Self:
        """From comparisons with the baseline of the assignment. Raises ConfigError for another one, or too few runs."""
        values = dict[int, float]()
        for path in paths:
            certificate = Certificate.read(path)
            if fault := next((check for check in verify(certificate) if check.fault), None):
                raise ConfigError(f"--baseline {path}: {fault.statement}: no, {fault.fault}")
            found, assigned = fixed_part(certificate.plan)["baseline"], assignment.plan["baseline"]
            if found["config"] != assigned["config"] or certificate.data != assignment.data_hash:  # type: ignore[index, call-overload]
                raise ConfigError(f"--baseline {path}: it has another baseline or other data than the assignment")
            values |= certificate.numbers[certificate.baseline]
        if len(values) < MIN_RUNS or not all(map(math.isfinite, values.values())):
            raise ConfigError(
                f"--baseline {paths[0]}: needs at least {MIN_RUNS} runs of the baseline, and no failed one"
            )
        return cls(tuple(values.values()), dict(certificate.machine), dict(certificate.runtime))

    @classmethod
    def of_class(cls, certificate: Certificate, others: Sequence[Certificate]) -> Self | None:
        """The values of the other students on the same machine and with the same precision; None if there are too few."""
        place = (place_of(certificate.machine, MACHINE), place_of(certificate.runtime, RUNTIME))
        values = tuple(
            value
            for other in others
            if other is not certificate
            and (place_of(other.machine, MACHINE), place_of(other.runtime, RUNTIME)) == place
            for value in other.numbers[other.baseline].values()
            if math.isfinite(value)
        )
        found = cls(values, dict(certificate.machine), dict(certificate.runtime))
        return found if found.is_enough else None

    @property
    def is_enough(self) -> bool:
        """Whether the interval is narrow enough to find anything: with 5 values it is 5 SDs of a run to each side."""
        return len(self.values) >= ENOUGH

    def interval(self, runs: int, students: int) -> tuple[float, float]:
        """Where the mean of a student's runs lies, with a probability of 1 - ALPHA / students: m ± t s sqrt(1/N + 1/n)."""
        count = len(self.values)
        half = t_critical(count - 1, ALPHA / students) * sd(self.values) * math.sqrt(1 / count + 1 / runs)
        return mean(self.values) - half, mean(self.values) + half

    def differences(self, certificate: Certificate) -> list[str]:
        """In what the machine and the precision of a certificate are others than the teacher's."""
        pairs = [(MACHINE, self.machine, certificate.machine), (RUNTIME, self.runtime, certificate.runtime)]
        return [
            f"{key} {there.get(key)}, not {here.get(key)}"
            for keys, here, there in pairs
            for key in keys
            if here.get(key) != there.get(key)
        ]


def place_of(facts: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(facts.get(key) for key in keys)
