"""Verdicts that may be asked for after every new run: arms against a baseline at equal seeds, or runs against a number.

"Better" and "worse" are two families of hypotheses, each with an error rate of `side_alpha` over all rows by Holm's method.
An e-value e gives p = 1 / e, which is ever at most alpha with a probability of at most alpha. "Equivalent" is an interval
within the margin, at the Bonferroni level.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from partwise.comparison.stats.any_time import AnyTimeTest, any_time_test
from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.families import holm, holm_levels
from partwise.config import ConfigError, did_you_mean

Outcome = Literal["better", "worse", "equivalent", "reached", "missed", "undecided"]

METHOD = "one-sided t test by a mixture, scale 1"
"""Named in every document: the methods of judging by number are others."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What all rows are asked: differences from a baseline, or runs against a target."""

    side_alpha: float
    """The error of "better", and that of "worse", or of "reached" and "missed"."""
    lower_is_better: bool = True
    target: float | None = None
    """None for differences from a baseline."""
    margin: float | None = None
    """The largest difference that does not matter; without it no row is equivalent."""
    failure: float | None = None

    def __post_init__(self) -> None:
        if not 1e-9 <= self.side_alpha <= 0.4:
            raise ConfigError(f"--alpha {self.side_alpha:g}: expected an error from 1e-9 to 0.4, such as 0.01")
        if self.margin is not None and not 0 < self.margin < math.inf:
            raise ConfigError(f"--margin {self.margin:g}: expected a positive number, in the values' unit")


@dataclass(frozen=True, kw_only=True)
class AnyTimeRow:
    """One arm against the baseline, or one entry against the target, after the runs so far."""

    name: str
    against: str | None
    """The baseline; None against a target."""
    outcome: Outcome
    n: int
    """Pairs of runs at equal seeds, or runs."""
    left_out: int = 0
    """Runs without a partner at the same seed."""
    failed: int
    """Pairs or runs without a finite value, or beyond the failure threshold: there is no test then."""
    mean: float | None
    sd: float | None
    low: float | None
    """The confidence sequence now; None where it has no bound yet."""
    high: float | None
    confidence: float
    e_better: float | None
    """Evidence of better, or of reached: its mean is 1 at most if that is not so."""
    e_worse: float | None
    p_better: float | None
    """1 / e, adjusted for the number of rows by Holm's method."""
    p_worse: float | None
    values: tuple[float | None, ...]
    """The differences, or the runs; None for one that failed."""


def judge_pairs(
    values: Mapping[str, Mapping[int, float]], question: Question, baseline: str | None = None
) -> list[AnyTimeRow]:
    """Judge every arm against the baseline (default: the first arm) on their common seeds. Raises ConfigError."""
    against = next(iter(values)) if baseline is None else baseline
    if against not in values:
        raise ConfigError(f"unknown baseline {against!r}{did_you_mean(against, values)}")
    base, samples, left_out = values[against], dict[str, list[float]](), dict[str, int]()
    for arm, runs in values.items():
        if arm == against:
            continue
        common = sorted(runs.keys() & base.keys())
        if not common:
            raise ConfigError(
                f"{arm!r} and {against!r} have no seed in common: --any-time compares pairs of equal seeds"
            )
        failed = [any(_failed(each[seed], question) for each in (runs, base)) for seed in common]
        samples[arm] = [math.nan if bad else runs[seed] - base[seed] for seed, bad in zip(common, failed, strict=True)]
        left_out[arm] = len(runs) + len(base) - 2 * len(common)
    return _judge(samples, question, against, left_out)


def judge_runs(values: Mapping[str, Sequence[float]], question: Question) -> list[AnyTimeRow]:
    """Judge the runs of every entry against the target of the question."""
    if question.target is None:
        raise ValueError("runs are judged against a target")
    samples = {name: [math.nan if _failed(run, question) else run for run in runs] for name, runs in values.items()}
    return _judge(samples, question, None, {})


def _failed(value: float, question: Question) -> bool:
    return has_failed(value, question.failure, question.lower_is_better)


def _judge(
    samples: Mapping[str, Sequence[float]], question: Question, against: str | None, left_out: Mapping[str, int]
) -> list[AnyTimeRow]:
    number = question.target or 0.0
    tests = {
        name: None if any(map(math.isnan, sample)) else any_time_test(sample, number)
        for name, sample in samples.items()
    }
    e_values = [_sides(test, question) for test in tests.values()]
    families = [[1.0 if e is None else 1 / max(e, 1.0) for e in side] for side in zip(*e_values, strict=True)]
    adjusted = [holm(p) for p in families]
    levels = [holm_levels(p, question.side_alpha) for p in families]
    return [
        _row(
            name,
            samples[name],
            test,
            question,
            against,
            left_out.get(name, 0),
            (adjusted[0][index], adjusted[1][index]),
            (levels[0][index], levels[1][index]),
            question.side_alpha / len(samples),
        )
        for index, (name, test) in enumerate(tests.items())
    ]


def _sides(test: AnyTimeTest | None, question: Question) -> tuple[float | None, float | None]:
    """The e-values of better and of worse."""
    if test is None:
        return None, None
    sides = test.e_below, test.e_above
    return sides if question.lower_is_better else (sides[1], sides[0])


def _row(
    name: str,
    sample: Sequence[float],
    test: AnyTimeTest | None,
    question: Question,
    against: str | None,
    left_out: int,
    adjusted: tuple[float, float],
    levels: tuple[float, float],
    level_equivalent: float,
) -> AnyTimeRow:
    better, worse = (p <= question.side_alpha for p in adjusted)
    level = levels[0] if better else levels[1] if worse else min(levels)
    words: tuple[Outcome, Outcome] = ("better", "worse") if question.target is None else ("reached", "missed")
    outcome: Outcome = words[0] if better else words[1] if worse else "undecided"
    if _is_within(test, question, level_equivalent):
        outcome, level = "equivalent", level_equivalent
    low, high = test.bounds(level) if test else (None, None)
    e_better, e_worse = _sides(test, question)
    tested = e_better is not None
    return AnyTimeRow(
        name=name,
        against=against,
        outcome=outcome,
        n=len(sample),
        left_out=left_out,
        failed=sum(map(math.isnan, sample)),
        mean=test.mean if test else None,
        sd=test.sd if test else None,
        low=low,
        high=high,
        confidence=1 - 2 * level,
        e_better=e_better,
        e_worse=e_worse,
        p_better=adjusted[0] if tested else None,
        p_worse=adjusted[1] if tested else None,
        values=tuple(None if math.isnan(value) else value for value in sample),
    )


def _is_within(test: AnyTimeTest | None, question: Question, level: float) -> bool:
    """Whether the confidence sequence of a difference lies within the margin."""
    if test is None or question.margin is None:
        return False
    low, high = test.bounds(level)
    return low is not None and high is not None and -question.margin <= low and high <= question.margin
