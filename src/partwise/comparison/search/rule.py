"""The rule of a search: when a candidate is run again, kept or discarded, against repeats of the present best.

The first run of a candidate is a screen: a candidate that does not look better ends, at the price of one run. Only those that
pass are tested, on further runs; the screening run is not used again, so a test knows nothing of what let it start. Tests are
numbered in one online sequence (`online_level`), in which only a keep is a discovery. A test may keep its candidate at the
planned looks, each with its share of the level (Bonferroni), and may end after any run that makes it hopeless, which can only
lower the error.

A candidate that is kept becomes the present best, and is repeated afresh: the repeats form the next pool. The runs that won
are not among them, since they are better than the truth on average.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from partwise.comparison.stats.failure import has_failed
from partwise.comparison.stats.online import online_level
from partwise.comparison.stats.samples import ROUNDING, mean, t_critical, t_sf
from partwise.config import ConfigError

Kind = Literal["run", "keep", "discard", "undecided"]
Reason = Literal["first run", "screen", "failure", "hopeless", "test", "better", "not shown"]


@dataclass(frozen=True)
class Design:
    """How a search tries its candidates. Raises ConfigError for settings that do not fit."""

    pool: int = 16
    """Repeats of the first best, before the first candidate."""
    promotion: int = 8
    """Fresh repeats of a candidate that is kept, which become the pool."""
    screen: float = 0.3
    """A candidate ends after its first run if the one-sided p of "not better" exceeds this."""
    futility: float = 0.35
    """The same limit after every later run."""
    looks: tuple[int, ...] = (3, 6, 10)
    """Test runs, those after the first one, at which a candidate may be kept."""
    shares: tuple[float, ...] = (0.2, 0.3, 0.5)
    """The share of the level that each look spends."""
    alpha: float = 0.05
    """The expected fraction of false ones among the kept."""
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        for name, count in (("pool", self.pool), ("promotion", self.promotion)):
            if count < 2:
                raise ConfigError(f"{name}={count}: expected 2 repeats of the best or more, which measure the noise")
        for name, limit in (("screen", self.screen), ("futility", self.futility)):
            if not 0 < limit <= 1:
                raise ConfigError(f"{name}={limit:g}: expected a p from 0 to 1, such as 0.3")
        if not 0 < self.alpha < 1:
            raise ConfigError(f"alpha={self.alpha:g}: expected an error probability between 0 and 1, such as 0.05")
        ascending = all(early < late for early, late in zip(self.looks, self.looks[1:], strict=False))
        if not self.looks or self.looks[0] < 1 or not ascending:
            raise ConfigError(f"looks={self.looks}: expected ascending numbers of runs, such as (3, 6, 10)")
        if len(self.shares) != len(self.looks) or min(self.shares) <= 0 or sum(self.shares) > 1 + 1e-9:
            raise ConfigError(f"shares={self.shares}: expected a positive share for each look, with a sum of 1 or less")

    @property
    def most_runs(self) -> int:
        """The most runs of a candidate, without its repeats after a keep."""
        return 1 + self.looks[-1]


@dataclass(frozen=True)
class Pool:
    """Fresh repeats of the present best; the noise is pooled with that of all earlier groups of runs.

    A group is a pool before, or the test runs of a candidate: groups may differ in their means, and are taken to have the
    same SD.
    """

    values: tuple[float, ...]
    squares: float = 0.0
    """The sum of squared deviations in the earlier groups, each from its own mean."""
    df: int = 0
    """Their degrees of freedom."""

    @property
    def pooled_squares(self) -> float:
        return self.squares + sum_of_squares(self.values)

    @property
    def pooled_df(self) -> int:
        return self.df + len(self.values) - 1

    def with_group(self, values: Sequence[float]) -> "Pool":
        """The same repeats, with the noise of a further group."""
        if len(values) < 2:
            return self
        return Pool(self.values, self.squares + sum_of_squares(values), self.df + len(values) - 1)

    def replaced(self, repeats: Sequence[float]) -> "Pool":
        """The pool of the next best, given its fresh repeats."""
        return Pool(tuple(repeats), self.pooled_squares, self.pooled_df)


@dataclass(frozen=True, kw_only=True)
class Action:
    """What to do with a candidate, and why."""

    kind: Kind
    reason: Reason
    runs: int = 0
    """How many more runs to make before asking again; 0 unless the kind is "run"."""
    tested: bool = False
    """Whether the candidate has a number in the online sequence: it has passed the screen."""
    p: float | None = None
    """The one-sided p of "not better than the present best", of the runs that count now."""
    level: float | None = None
    """What `p` must not exceed at this look for a keep; None between looks and before the test."""
    estimate: float | None = None
    """Mean of the candidate's runs that count now, less that of the pool, in the values' unit."""
    low: float | None = None
    high: float | None = None
    """Its interval of 95%, for reading: it is not adjusted for the looks or the search."""


def next_action(values: Sequence[float], pool: Pool, level: float | None, design: Design) -> Action:
    """What to do after the candidate's runs `values`, in their order.

    The first value is that of the screen. `level` is that of the candidate's test, fixed when it passed the screen
    (`Search.level`); it may be None before that. Any run that failed ends the candidate. Raises ConfigError if the pool
    cannot be compared with: a value is not finite, or its runs do not vary.
    """
    check_pool(pool, design)
    if not values:
        return Action(kind="run", reason="first run", runs=1)
    tested = len(values) > 1
    if any(has_failed(value, None, design.lower_is_better) for value in values):
        return Action(kind="discard", reason="failure", tested=tested)
    if not tested:
        screened = _measure(values, pool, design)
        if screened.p > design.screen:
            return screened.action("discard", "screen")
        return screened.action("run", "test", runs=1, tested=True)
    if level is None:
        raise ConfigError("a candidate that passed the screen has a level: give that of its test")
    runs = values[1:]
    measured = _measure(runs, pool, design)
    passed = [look for look in design.looks if look <= len(runs)]
    at_look = level * design.shares[len(passed) - 1] if passed and passed[-1] == len(runs) else None
    if at_look is not None and measured.p <= at_look:
        return measured.action("keep", "better", tested=True, level=at_look)
    if measured.p > design.futility:
        return measured.action("discard", "hopeless", tested=True, level=at_look)
    if len(runs) >= design.looks[-1]:
        return measured.action("undecided", "not shown", tested=True, level=at_look)
    return measured.action("run", "test", runs=1, tested=True, level=at_look)


def confirm(kept: Action, repeats: Sequence[float], design: Design) -> Action:
    """The action after the fresh repeats of a candidate that was to be kept: it is discarded if one of them failed."""
    if any(has_failed(value, None, design.lower_is_better) for value in repeats):
        return replace(kept, kind="discard", reason="failure")
    return kept


@dataclass(frozen=True)
class Search:
    """What a search knows between two candidates: the pool of the present best, and its online sequence."""

    pool: Pool
    tests: int = 0
    """Tests that started: candidates that passed the screen."""
    discoveries: tuple[int, ...] = ()
    """For each keep, the number of tests that had started."""

    def level(self, design: Design) -> float:
        """The level of the next test."""
        return online_level(self.tests, self.discoveries, design.alpha)

    def ended(self, values: Sequence[float], action: Action, repeats: Sequence[float] = ()) -> "Search":
        """The search after a candidate with these runs.

        `repeats` are the fresh runs of one that was kept, which become the pool.
        """
        if action.kind == "run":
            raise ValueError("the candidate has not ended")
        tests = self.tests + action.tested
        pool = self.pool if action.reason == "failure" else self.pool.with_group(values[1:])
        if action.kind != "keep":
            return replace(self, pool=pool, tests=tests)
        return Search(pool.replaced(repeats), tests, (*self.discoveries, tests))


def check_pool(pool: Pool, design: Design) -> None:
    """Raise ConfigError unless candidates can be compared with the pool."""
    if len(pool.values) < 2:
        raise ConfigError(f"{len(pool.values)} repeats of the best: run at least 2, which measure the noise")
    for value in pool.values:
        if has_failed(value, None, design.lower_is_better):
            raise ConfigError(
                f"a repeat of the best has the value {value:g}: its runs must be finite; start from another"
            )
    rounding = ROUNDING * max(map(abs, pool.values))
    if pool.pooled_squares <= pool.pooled_df * rounding**2:
        raise ConfigError(
            f"all {len(pool.values)} repeats of the best have the value {pool.values[0]:g}: give each run a seed of its own, "
            "or there is no noise to judge by"
        )


def sum_of_squares(values: Sequence[float]) -> float:
    """The sum of squared deviations from the mean."""
    center = mean(values)
    return math.fsum([(value - center) ** 2 for value in values])


@dataclass(frozen=True)
class _Measured:
    """A candidate's runs against the pool: a t test whose variance is pooled over both and all earlier groups."""

    p: float
    estimate: float
    half: float

    def action(
        self, kind: Kind, reason: Reason, *, runs: int = 0, tested: bool = False, level: float | None = None
    ) -> Action:
        return Action(
            kind=kind,
            reason=reason,
            runs=runs,
            tested=tested,
            p=self.p,
            level=level,
            estimate=self.estimate,
            low=self.estimate - self.half,
            high=self.estimate + self.half,
        )


def _measure(runs: Sequence[float], pool: Pool, design: Design) -> _Measured:
    df = pool.pooled_df + len(runs) - 1
    variance = (pool.pooled_squares + sum_of_squares(runs)) / df
    error = math.sqrt(variance * (1 / len(runs) + 1 / len(pool.values)))
    estimate = mean(runs) - mean(pool.values)
    better = -estimate if design.lower_is_better else estimate
    return _Measured(t_sf(df, better / error), estimate, t_critical(df, 0.05) * error)
