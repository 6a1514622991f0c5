"""The stored answers of lessons, and where the answer of other seeds is expected. Imports no torch."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import special

from partwise.ablation.request import Request
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.protocol import Rules
from partwise.comparison.stats.samples import mean, sd, t_critical
from partwise.comparison.stats.value_verdicts import judge_arms
from partwise.config import ConfigError
from partwise.lessons.lesson import Lesson, Quantity

FOLDER = Path(__file__).with_name("answers")
ALPHA = 0.001
"""The answer of other seeds lies outside the prediction interval with this probability."""
GROUPS = 10
"""The groups of stored seeds whose verdicts are compared."""

Series = Mapping[str, Mapping[str, Mapping[int, float]]]
"""arm -> measure -> seed -> value."""
Measured = Mapping[str, Series]
"""The name of a lesson's run -> its values."""


@dataclass(frozen=True)
class Expected:
    """What a quantity was on the stored seeds, and the interval that the answer of other seeds lies in with 1 - ALPHA."""

    value: float
    low: float
    high: float
    seeds: int

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def per_seed(quantity: Quantity, measured: Measured) -> dict[int, float]:
    """The measure of the quantity's arm on each seed, minus that of the arm that it is compared with. Raises ConfigError."""
    series = measured[quantity.run]
    values = seed_values(series[quantity.arm], quantity.measure)
    for arm in quantity.or_arms:
        others = seed_values(series[arm], quantity.measure)
        values = {seed: lower(value, others[seed]) for seed, value in values.items()}
    if quantity.against is None:
        return dict(values)
    against = seed_values(series[quantity.against], quantity.measure)
    return {seed: value - against[seed] for seed, value in values.items() if seed in against}


def seed_values(measures: Mapping[str, Mapping[int, float]], name: str) -> Mapping[int, float]:
    """A measure of one arm on each seed. `loss above X` is 1 for a run whose loss ends above X or is not finite, else 0."""
    measure, above, threshold = name.partition(" above ")
    if not above:
        return measures[name]
    return {seed: float(not value <= float(threshold)) for seed, value in measures[measure].items()}


def lower(a: float, b: float) -> float:
    """The lower of two values; nan if a run failed."""
    return min(a, b) if math.isfinite(a + b) else math.nan


def find_value(quantity: Quantity, measured: Measured) -> float:
    """The mean or the SD over seeds, nan if a run failed; or the share."""
    values = list(per_seed(quantity, measured).values())
    if not all(map(math.isfinite, values)):
        return math.nan
    return sd(values) if quantity.statistic == "sd" else mean(values)


def expected(quantity: Quantity, stored: Measured, seeds: int) -> Expected:
    """Where the answer of `seeds` other seeds lies with a probability of 1 - ALPHA, for normal values.

    For a mean, m ± t s sqrt(1/N + 1/n) with N stored seeds; for an SD, s times the square roots of quantiles of
    F(n - 1, N - 1). A share has the exact interval of `likely_counts`.
    """
    values = list(per_seed(quantity, stored).values())
    count, spread = len(values), sd(values)
    if quantity.statistic == "share":
        likely = likely_counts(round(sum(values)), count, seeds)
        return Expected(mean(values), likely[0] / seeds, likely[-1] / seeds, count)
    if quantity.statistic == "mean":
        center = mean(values)
        half = t_critical(count - 1, ALPHA) * spread * math.sqrt(1 / count + 1 / seeds)
        return Expected(center, center - half, center + half, count)
    low, high = (math.sqrt(special.fdtri(seeds - 1, count - 1, p)) for p in (ALPHA / 2, 1 - ALPHA / 2))
    return Expected(spread, spread * low, spread * high, count)


def likely_counts(found: int, stored: int, seeds: int) -> list[int]:
    """How many of `seeds` other runs fail, with 1 - ALPHA or more, if `found` of the `stored` ones did.

    If k others fail, each choice of the k + found failed runs from all of them is equally likely, whatever the probability
    of a failure: k lies in neither tail, of ALPHA / 2 each, of the hypergeometric distribution.
    """
    likely = []
    for k in range(seeds + 1):
        total = found + k
        ways = [math.comb(seeds, i) * math.comb(stored, total - i) for i in range(min(seeds, total) + 1)]
        if min(sum(ways[: k + 1]), sum(ways[k:])) > ALPHA / 2 * sum(ways):
            likely.append(k)
    return likely


@dataclass(frozen=True)
class StoredAnswer:
    """The values on the stored seeds, by the precision of the runs, and the verdicts that they give."""

    lesson: Lesson
    precision: str
    measured: Measured
    machine: str

    @property
    def seeds(self) -> int:
        """The number of stored seeds."""
        return self.expected(self.lesson.asked).seeds

    def expected(self, quantity: Quantity) -> Expected:
        return expected(quantity, self.measured, self.lesson.head.runs[quantity.run].seeds)

    def verdicts(self) -> dict[tuple[str, str], Counter[str]]:
        """For each arm that is judged against the first of its run: how many of ten groups of seeds gave which verdict.

        A group has as many seeds as the reader; if the stored seeds are too few for ten groups apart, groups share some.
        """
        found: dict[tuple[str, str], Counter[str]] = {}
        for name, request in self.lesson.head.runs.items():
            losses = final_losses(self.measured[name])
            seeds = sorted(next(iter(losses.values())))
            for number in range(GROUPS):
                chosen = [seeds[(number * request.seeds + each) % len(seeds)] for each in range(request.seeds)]
                for effect in judge(losses, request, chosen):
                    found.setdefault((name, effect.arm), Counter())[effect.verdict or "no verdict"] += 1
        return found


def judge(losses: Mapping[str, Mapping[int, float]], request: Request, seeds: Iterable[int]) -> list[Effect]:
    """The effects of the arms of a run on some seeds, as `compare` judges them."""
    chosen = {arm: {seed: values[seed] for seed in seeds} for arm, values in losses.items()}
    effects, _ = judge_arms(chosen, Rules(margin=request.margin, alpha=request.alpha, looks=()))
    return effects


def final_losses(series: Series) -> dict[str, Mapping[int, float]]:
    return {arm: values["loss"] for arm, values in series.items()}


def answer_file(lesson: Lesson) -> Path:
    return FOLDER / f"{lesson.number:02}.json"


def read_answer(lesson: Lesson, precision: str | None = None) -> StoredAnswer:
    """The stored answer of runs in a precision, or in the first that is stored. Raises ConfigError."""
    sets = json.loads(answer_file(lesson).read_text(encoding="utf-8"))["sets"]
    found: Any = next((each for each in sets if each["precision"] == precision), sets[0])
    return StoredAnswer(lesson, found["precision"], from_lists(found["seeds"], found["values"]), found["machine"])


def write_answer(lesson: Lesson, precision: str, machine: str, measured: Measured) -> None:
    """Store a set of values in place of the one of the same precision."""
    path = answer_file(lesson)
    sets = json.loads(path.read_text(encoding="utf-8"))["sets"] if path.exists() else []
    seeds = sorted(next(iter(final_losses(next(iter(measured.values()))).values())))
    if missing := [seed for seed in seeds if any(seed not in each for each in all_series(measured))]:
        raise ConfigError(f"seed {missing[0]} lacks a value")
    new = {"precision": precision, "machine": machine, "seeds": seeds, "values": to_lists(measured, seeds)}
    sets = [each for each in sets if each["precision"] != precision] + [new]
    path.write_text(json.dumps({"sets": sets}) + "\n", encoding="utf-8", newline="\n")


def all_series(measured: Measured) -> Iterable[Mapping[int, float]]:
    return (each for series in measured.values() for measures in series.values() for each in measures.values())


def to_lists(measured: Measured, seeds: Sequence[int]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Values to six significant digits, in the order of the seeds."""
    return {
        run: {
            arm: {measure: [float(f"{values[seed]:.6g}") for seed in seeds] for measure, values in measures.items()}
            for arm, measures in series.items()
        }
        for run, series in measured.items()
    }


def from_lists(seeds: Sequence[int], values: Mapping[str, Any]) -> Measured:
    return {
        run: {
            arm: {measure: dict(zip(seeds, listed, strict=True)) for measure, listed in measures.items()}
            for arm, measures in series.items()
        }
        for run, series in values.items()
    }
