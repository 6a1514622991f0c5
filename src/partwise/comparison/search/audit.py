"""An existing search, audited: how many candidates would it have kept if none of them helped?

Such a program runs each candidate once and keeps it if it is better than the present best, which was run once too. If nothing
helps, the kept ones are the records of a sequence of noisy runs: of n runs with equal means, the i-th after the first is a
record with probability 1 / (i + 1), independently of the others (Renyi 1962). Runs that are worse by far more than the noise
cannot be records, so they do not count; that is what the noise is needed for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from partwise.comparison.search.results_tsv import Row
from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.samples import mean, t_sf
from partwise.config import ConfigError

FAR = 3.0
"""A run does worse than nothing if it is this many SDs worse than the record that is expected of noise alone."""

TAIL = 0.025
"""The probability on each side of the ranges."""


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The SD of single runs, and where it comes from."""

    sd: float
    df: int | None
    """Degrees of freedom; None for an SD that was given."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A candidate that the search kept, against the best before it."""

    line: int
    commit: str
    description: str
    value: float
    gain: float
    """How much better than the best before it, in the values' unit."""
    p: float | None
    """The one-sided p of one run against one; None without noise."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What a search kept, and what it would have kept if nothing helped; those numbers are None without noise."""

    candidates: int
    """With a finite value; the first run and repeats do not count."""
    crashes: int
    repeats: int
    kept: tuple[Kept, ...]
    noise: Noise | None
    contenders: int | None = None
    """Candidates that are not worse by far more than the noise."""
    expected: float | None = None
    """The mean number of contenders that a search in which nothing helps keeps."""
    low: int | None = None
    high: int | None = None
    """Its range in 95% of such searches."""
    gain: float
    """From the first run to the last that was kept, in the values' unit."""
    chance_gain: float | None = None
    """The median of the best gain by chance, from the first run to the best contender."""
    chance_low: float | None = None
    chance_high: float | None = None
    """Its range in 95% of searches in which nothing helps."""
    repeat_commit: str
    """The commit of the last kept run, which is the one to repeat."""


def audit(rows: Sequence[Row], lower_is_better: bool = True, known: Noise | None = None) -> Audit:
    """Audit the rows of a search, in their order; the first with a value is the baseline.

    Raises ConfigError for fewer than 2 values, and for means of several runs, which a search does not keep as records.
    The noise is `known`, or pooled from commits that have several rows, which are repeats.
    """
    finished = [row for row in rows if row.value is not None and not has_failed(row.value, None, lower_is_better)]
    if len(finished) < 2:
        raise ConfigError("the search has fewer than 2 runs with a value: there is nothing to audit")
    if several := next((row for row in finished if row.runs > 1), None):
        raise ConfigError(
            f"line {several.line}: the value is the mean of {several.runs} runs, but --search audits searches that keep what "
            "is better in single runs; `partwise try --search NAME` shows what a search by its rule has kept"
        )
    noise = known or noise_of_repeats(finished)
    sign = -1.0 if lower_is_better else 1.0
    first, *rest = finished
    best, commits = first, {first.commit}
    kept, worse_by = [], []
    for row in rest:
        if row.commit in commits and row.commit:
            continue
        commits.add(row.commit)
        gain = sign * (_value(row) - _value(best))
        worse_by.append(-gain)
        if row.status == "keep":
            p = None if noise is None else _p_of_gain(gain, noise)
            kept.append(_kept(row, gain, p))
            best = row
    known_numbers = {} if noise is None else _by_chance(worse_by, noise.sd)
    return Audit(
        candidates=len(worse_by),
        crashes=len(rows) - len(finished),
        repeats=len(rest) - len(worse_by),
        kept=tuple(kept),
        noise=noise,
        gain=sign * (_value(best) - _value(first)),
        repeat_commit=best.commit,
        **known_numbers,  # type: ignore[arg-type]
    )


def noise_of_repeats(rows: Sequence[Row]) -> Noise | None:
    """The SD pooled over commits with several values; None without any, or if they do not vary."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.value is not None and row.commit:
            groups.setdefault(row.commit, []).append(row.value)
    repeated = {commit: values for commit, values in groups.items() if len(values) > 1}
    df = sum(len(values) - 1 for values in repeated.values())
    squares = sum(math.fsum([(value - mean(values)) ** 2 for value in values]) for values in repeated.values())
    if not squares:
        return None
    names = ", ".join(f"{len(values)} runs of {commit}" for commit, values in list(repeated.items())[:3])
    more = f" and {len(repeated) - 3} further commits" if len(repeated) > 3 else ""
    return Noise(sd=math.sqrt(squares / df), df=df, source=names + more)


def record_counts(n: int) -> np.ndarray:
    """The probabilities of 0, 1, ... records among n runs after a first one, all with equal means."""
    counts = np.ones(1)
    for later in range(1, n + 1):
        p = 1 / (later + 1)
        counts = np.convolve(counts, [1 - p, p])[: min(later, 60) + 1]  # 60 records are beyond any file
    return counts


def chance_gain(n: int, probability: float) -> float:
    """The quantile of z_0 - min(z_0, ..., z_n) of standard normal runs: how much better the best is than the first."""
    z = np.linspace(-9.0, 9.0, 1201)
    density = np.exp(-z * z / 2)
    low, high = 0.0, 20.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        none_better = np.sum(density * special.ndtr(middle - z) ** n) / np.sum(density)
        low, high = (low, middle) if none_better >= probability else (middle, high)
    return high if high > 1e-4 else 0.0


def _value(row: Row) -> float:
    assert row.value is not None
    return row.value


def _kept(row: Row, gain: float, p: float | None) -> Kept:
    return Kept(line=row.line, commit=row.commit, description=row.description, value=_value(row), gain=gain, p=p)


def _p_of_gain(gain: float, noise: Noise) -> float:
    df = math.inf if noise.df is None else float(noise.df)
    return t_sf(df, gain / (noise.sd * math.sqrt(2)))


def _by_chance(worse_by: Sequence[float], sd: float) -> dict[str, float | int]:
    """What the candidates that are not far worse than the best give by chance."""
    contenders = 0
    for difference in worse_by:
        record = -float(special.ndtri(0.625 / (contenders + 1.25)))  # Blom's approximation of the best of these runs
        contenders += difference <= (FAR + record) * sd
    counts = record_counts(contenders)
    cumulative = np.cumsum(counts)
    return {
        "contenders": contenders,
        "expected": float(np.sum(counts * np.arange(len(counts)))),
        "low": int(np.searchsorted(cumulative, TAIL)),
        "high": int(np.searchsorted(cumulative, 1 - TAIL)),
        "chance_gain": sd * chance_gain(contenders, 0.5),
        "chance_low": sd * chance_gain(contenders, TAIL),
        "chance_high": sd * chance_gain(contenders, 1 - TAIL),
    }
