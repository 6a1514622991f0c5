"""A class collected: every hand-in with its checks and its verdict, alone and beside those of the others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scipy import special

from partwise.classroom.assignment import Assignment
from partwise.classroom.baseline import Baseline
from partwise.classroom.check_result import Check
from partwise.classroom.copies import check_copies
from partwise.classroom.hand_in_checks import changed_arm, check_hand_in, student_of, values_check
from partwise.classroom.hand_ins import HandIn, read_hand_in, shown
from partwise.comparison.certificate.verification import judge_values
from partwise.comparison.stats.effect import Effect, Verdict
from partwise.comparison.stats.methods import FIRST, find_method
from partwise.config import ConfigError


@dataclass
class Entry:
    """One hand-in of the class."""

    hand_in: HandIn
    number: int | None
    """The student's number, by the seeds."""
    change: str
    effect: Effect | None
    """Judged from the values, by itself; None if there is no such claim."""
    checks: list[Check]
    together: Effect | None = None
    """Judged together with all hand-ins without an objection, by Holm's method; None for the others."""

    @property
    def name(self) -> str:
        return self.hand_in.name

    @property
    def objections(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "objection"]

    @property
    def missing(self) -> list[Check]:
        return [check for check in self.checks if check.outcome == "missing"]

    def to_dict(self) -> dict[str, Any]:
        effect, together = self.effect, self.together
        return {
            "name": self.name,
            "number": self.number,
            "change": self.change,
            "mean": effect.mean if effect else None,
            "low": effect.low if effect else None,
            "high": effect.high if effect else None,
            "seeds": effect.n if effect else None,
            "p": effect.p_adjusted if effect else None,
            "verdict": effect.verdict if effect else None,
            "p_holm": together.p_adjusted if together else None,
            "verdict_holm": together.verdict if together else None,
            "checks": [check.to_dict() for check in self.checks],
        }


@dataclass
class Collection:
    """All hand-ins of a class; `refused` has the reason by name of those that could not be read."""

    assignment: Assignment
    entries: list[Entry] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def judged(self) -> list[Entry]:
        """The hand-ins without an objection."""
        return [entry for entry in self.entries if entry.together]

    def expected_false(self) -> tuple[float, int, float]:
        """If no change did anything: the expected number of differences, a number that is unusual, and how probable that
        many or more are. Students have seeds of their own, so the number is binomial."""
        n, alpha = len(self.judged), self.assignment.alpha
        unusual = next(k for k in range(n + 2) if tail(n, k, alpha) < 0.0501)
        return n * alpha, unusual, tail(n, unusual, alpha)

    def to_dict(self) -> dict[str, Any]:
        expected, unusual, probability = self.expected_false()
        return {
            "plan": self.assignment.plan_hash,
            "hand_ins": [entry.to_dict() for entry in self.entries],
            "refused": self.refused,
            "notes": self.notes,
            "expected_false": {"mean": expected, "unusual": unusual, "probability": probability},
        }


def tail(n: int, k: int, p: float) -> float:
    """P(X >= k) of a binomial number."""
    return 1.0 if k <= 0 else 0.0 if k > n else float(special.bdtrc(k - 1, n, p))


def collect(paths: Sequence[Path], assignment: Assignment, baseline: Baseline | None) -> Collection:
    """Read every hand-in and check it; nothing that was handed in is imported or run."""
    collection = Collection(assignment)
    for name, path in named(paths, collection.notes).items():
        try:
            hand_in = read_hand_in(path, name)
        except ConfigError as error:
            collection.refused[name] = shown(error, 300)
            continue
        collection.entries.append(make_entry(hand_in, assignment))
    compare_baselines(collection, baseline)
    copies = check_copies([entry.hand_in for entry in collection.entries], assignment)
    for entry in collection.entries:
        entry.checks += copies[entry.name]
    judge_together(collection)
    return collection


def named(paths: Sequence[Path], notes: list[str]) -> Mapping[str, Path]:
    """The hand-ins by name: that of the file without its suffix, or the whole path where two would share it."""
    stems: dict[str, list[Path]] = {}
    for path in dict.fromkeys(paths):
        stems.setdefault(shown(path.name if path.is_dir() else path.stem), []).append(path)
    found: dict[str, Path] = {}
    for stem, same in stems.items():
        if len(same) > 1:
            notes.append(f"{len(same)} hand-ins have the name {stem}: the table has their paths")
        found |= {stem if len(same) == 1 else shown(path, 200): path for path in same}
    return found


def make_entry(hand_in: HandIn, assignment: Assignment) -> Entry:
    checks = check_hand_in(hand_in, assignment)
    try:
        arm = changed_arm(hand_in.certificate)
        change = shown(arm["name"], 60) if arm else shown(hand_in.certificate.question, 60)
        effect = next(iter(judge_values(hand_in.certificate)), None)
        number = student_of(hand_in.certificate, assignment)
    except (ConfigError, TypeError, KeyError, ValueError):  # the checks have said why
        change, effect, number = shown(hand_in.certificate.question, 60), None, None
    return Entry(hand_in, number, change, effect, checks)


def compare_baselines(collection: Collection, baseline: Baseline | None) -> None:
    """Compare the baseline's values of each hand-in with the teacher's, or with those of the class if these are few."""
    others = [entry.hand_in.certificate for entry in collection.entries if not entry.objections]
    for entry in collection.entries:
        certificate = entry.hand_in.certificate
        expected = baseline if baseline and baseline.is_enough else Baseline.of_class(certificate, others) or baseline
        entry.checks.append(values_check(certificate, expected, collection.assignment.students))


def judge_together(collection: Collection) -> None:
    """Judge the hand-ins without an objection as one family, and sort all by their number."""
    for entry in collection.entries:
        entry.together = None
    judged = [entry for entry in collection.entries if entry.effect and not entry.objections]
    effects = [entry.effect for entry in judged if entry.effect]
    method = find_method(int(collection.assignment.plan.get("method", FIRST)))  # type: ignore[arg-type]
    for entry, effect in zip(
        judged, method.decide(effects, collection.assignment.alpha) if effects else [], strict=True
    ):
        entry.together = effect
    collection.entries.sort(key=lambda entry: (math.inf if entry.number is None else entry.number, entry.name))


def verdict_counts(entries: Sequence[Entry], together: bool = False) -> dict[Verdict | None, int]:
    """How often each verdict was reached."""
    counts: dict[Verdict | None, int] = {}
    for entry in entries:
        effect = entry.together if together else entry.effect
        verdict = effect.verdict if effect else None
        counts[verdict] = counts.get(verdict, 0) + 1
    return counts
