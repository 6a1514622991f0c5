"""Compute every published verdict again, with code that shares nothing with the instrument's own statistics.

    python tests/published_rows.py [DRAWS]

It reads the stored values and the protocol of each study, and computes differences, intervals, adjusted p-values and verdicts
with numpy and scipy. The noise of tuning is simulated, with DRAWS draws, so an interval agrees to a fraction of a percent of
its width. `make test-statistics` runs it.
"""

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

from partwise.studies.claims import find_outcomes
from partwise.studies.study import Study, find_study

LIBRARY = Path(__file__).parents[1] / "src" / "partwise" / "studies" / "library"
DRAWS = 400_000


@dataclass
class Row:
    """One published claim, recomputed; its family shares one error rate."""

    study: str
    arm: str
    margin: float
    alpha: float
    lower_is_better: bool
    untested: bool
    """Whether a run failed, or all differences are 0: there is no test, so the claim counts with a p-value of 1."""
    mean: float
    error: float
    df: float
    low: float = math.nan
    high: float = math.nan
    verdict: str | None = None

    @property
    def p(self) -> float:
        return float(2 * stats.t.sf(abs(self.mean) / self.error, self.df))

    @property
    def p_margin(self) -> float:
        """Of a difference of at least the margin: the smallest alpha whose two-sided interval lies within the margin."""
        room = self.margin - abs(self.mean)
        return float(2 * stats.t.sf(room / self.error, self.df)) if room > 0 else 1.0


def published(draws: int = DRAWS) -> dict[tuple[str, str, str], Row]:
    """(study, comparison, arm) -> the claim, judged in the family of its protocol, or of its comparison."""
    families: dict[object, list[Row]] = defaultdict(list)
    rows = {}
    for path in sorted(LIBRARY.glob("*/results.json")):
        protocol = yaml.safe_load((LIBRARY / f"{path.parent.name}.yaml").read_text()).get("protocol")
        for key, comparison in json.loads(path.read_text())["comparisons"].items():
            for row in claims(path.parent.name, comparison, draws):
                families[protocol or (path.parent.name, key)].append(row)
                rows[path.parent.name, key, row.arm] = row
    for family in families.values():
        judge(family)
    return rows


def claims(study: str, comparison: dict[str, Any], draws: int) -> Iterator[Row]:
    protocol = comparison["protocol"]
    runs = {arm["name"]: {trial["seed"]: trial["value"] for trial in arm["trials"]} for arm in comparison["arms"]}
    for claim in comparison["claims"]:
        effect, tuning = claim["effect"], comparison.get("tuning")
        if claim.get("role", "claim") != "claim":
            continue
        arm, base = runs[effect["arm"]], runs[effect["against"]]
        seeds = sorted(arm.keys() & base.keys())
        if claim.get("exploratory"):
            seeds = seeds[: effect["n"]]
        limit = protocol.get("failure")
        failed = any(
            value is None or (limit is not None and value > limit and protocol["lower_is_better"])
            for runs_of_arm in (arm, base)
            for value in runs_of_arm.values()
        )
        if failed:
            yield Row(study, effect["arm"], protocol["margin"], protocol["alpha"], True, True, 0, 1, 1)
            continue
        x = np.array([arm[seed] - base[seed] for seed in seeds])
        error, df = x.std(ddof=1) / math.sqrt(len(x)), len(x) - 1.0
        if not error:
            yield Row(study, effect["arm"], protocol["margin"], protocol["alpha"], True, True, 0, 1, 1)
            continue
        if effect.get("tuning_error") is not None:
            curves = [tuning_losses(tuning, name) for name in (effect["arm"], effect["against"])]
            sign = 1 if tuning["held_out"] or protocol["lower_is_better"] else -1
            of_tuning = math.sqrt(2 * sum(squared_regret(sign * curve, draws) for curve in curves))
            total = math.hypot(error, of_tuning)
            df_of_tuning = curves[0].shape[1] - 1
            df = total**4 / (error**4 / df + of_tuning**4 / df_of_tuning)
            error = total
        lower = protocol["lower_is_better"]
        yield Row(study, effect["arm"], protocol["margin"], protocol["alpha"], lower, False, x.mean(), error, df)


def tuning_losses(tuning: dict[str, Any], name: str) -> np.ndarray:
    """(values, seeds), of the values at which no run failed; the arm's name may end in the chosen value."""
    for row in tuning["arms"]:
        if name in (row["arm"], f"{row['arm']} {tuning['key']}={row['best']}"):
            return np.array([losses for losses in row["losses"] if None not in losses], dtype=float)
    raise ValueError(f"no tuning of {name}")


def squared_regret(losses: np.ndarray, draws: int) -> float:
    """E of the squared loss by which a redrawn best value would have been better than the chosen one."""
    means = losses.mean(axis=1)
    if len(means) < 2:
        return 0.0
    covariance = np.cov(losses) / losses.shape[1]
    redrawn = np.random.default_rng(1).multivariate_normal(means, covariance, draws)
    return float(np.mean((redrawn[:, means.argmin()] - redrawn.min(axis=1)) ** 2))


def step_down(p: list[float], alpha: float) -> list[tuple[bool, float]]:
    """Holm's procedure: whether each hypothesis is rejected, and the level at which it was tested."""
    order, k = np.argsort(p, kind="stable"), len(p)
    rejected = 0
    while rejected < k and p[order[rejected]] <= alpha / (k - rejected):
        rejected += 1
    found = [(False, 0.0)] * k
    for rank, index in enumerate(order):
        found[index] = (rank < rejected, alpha / (k - min(rank, rejected)))
    return found


def judge(family: list[Row]) -> None:
    alpha = family[0].alpha
    different = step_down([1.0 if row.untested else row.p for row in family], alpha)
    within = step_down([1.0 if row.untested else row.p_margin for row in family], alpha)
    for row, (differs, level), (equal, level_equal) in zip(family, different, within, strict=True):
        if row.untested:
            continue
        better = (row.mean < 0) == row.lower_is_better
        row.verdict = "equivalent" if equal else ("better" if better else "worse") if differs else "undecided"
        used = level_equal if equal else level if differs else min(level, level_equal)
        half = float(stats.t.isf(used / 2, row.df)) * row.error
        row.low, row.high = row.mean - half, row.mean + half


def stated() -> dict[tuple[str, str, str], Any]:
    """(study, comparison, arm) -> the effect that the pages show."""
    names = [path.parent.name for path in sorted(LIBRARY.glob("*/results.json"))]
    studies: list[Study] = [find_study(name) for name in names]
    found = find_outcomes(studies)
    return {(name, finding.key, finding.effect.arm): finding.effect for name in names for finding in found[name]}


def disagreements(draws: int = DRAWS) -> tuple[int, list[str]]:
    """The number of rows, and a line for each that disagrees."""
    own, pages, lines = published(draws), stated(), []
    if own.keys() != pages.keys():
        lines.append(f"rows that only one has: {sorted(own.keys() ^ pages.keys())}")
    for key in sorted(own.keys() & pages.keys()):
        row, effect = own[key], pages[key]
        if row.untested:
            agree = effect.low is None and effect.verdict in (None, "undecided")
        else:
            near = 0.01 * (row.high - row.low)
            ends = zip((row.low, row.high), (effect.low, effect.high), strict=True)
            agree = row.verdict == effect.verdict and all(abs(a - b) <= near for a, b in ends)
        if not agree:
            lines.append(
                f"{' | '.join(key)}: {effect.verdict} {effect.low} to {effect.high} on the pages, "
                f"{row.verdict} {row.low} to {row.high} recomputed"
            )
    return len(own), lines


def main() -> None:
    n, lines = disagreements(int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS)
    print("\n".join(lines), f"{n - len(lines)} of {n} published rows agree", sep="\n" if lines else "")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
