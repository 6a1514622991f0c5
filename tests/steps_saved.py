"""The section of docs/statistics.md on the compute saved: how often its intervals cover the true ratio.

python tests/steps_saved.py [DRAWS]    replace the section; a minute with 2000
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from partwise.comparison.stats.compute_saved import Saved, steps_saved
from simulations import with_section

PAGE = Path("docs/statistics.md")
NEXT = "## Intervals of several arms together"
TITLE = "## Compute saved"
STEPS = (500, 1000, 2000)
RATIOS = (1 / 3, 0.8, 1.2, 1.7, 3.0)
PAIRS, SD = 8, 0.007

CURVES: dict[str, Callable[[float], float]] = {
    "a power law with a floor": lambda n: 1.1 + 9.0 * n**-0.45,
    "a power law without one": lambda n: 5.0 * n**-0.17,
    "a square of the logarithm": lambda n: 1.4 - 0.14 * math.log(n / 2000) + 0.045 * math.log(n / 2000) ** 2,
    "an exponential with a floor": lambda n: 1.4 + 0.6 * math.exp(-n / 600),
}

TEXT = """{title}

Simulated runs of {steps} steps end on a known curve, with a noise of {sd} nats, half of whose variance
the runs of a seed share. The arm has the same curve at *ratio* times the speed. Of {draws:,} comparisons of {pairs} pairs,
this percentage has a 95% interval that covers the ratio (in brackets the geometric mean of the estimates), by a power law
through three ends and, as versions before did, by a straight line in the logarithm of the steps:
`python tests/steps_saved.py {draws}`.

| curve | ratio | power law | line |
|---|---:|---:|---:|
{rows}

The exponential is bent more than curves of training usually are: it shows what a power law does not fit. Runs of two lengths
give the ratio without an interval.

"""


def by_line(arm: np.ndarray, baseline: np.ndarray) -> float:
    """The logarithm of the ratio of one pair, from losses that are linear in the logarithm of the steps."""
    if arm[-1] > baseline[-1]:
        return -by_line(baseline, arm)
    logs = np.log(STEPS)
    return float(logs[-1] - np.interp(-baseline[-1], -arm, logs))


def row(name: str, curve: Callable[[float], float], ratio: float, draws: int) -> str:
    rng, covered, logs = np.random.default_rng([draws, round(100 * ratio)]), [0, 0], [[], []]
    means = np.array([[curve(steps * speed) for steps in STEPS] for speed in (ratio, 1.0)])
    for _ in range(draws):
        noise = rng.standard_normal((PAIRS, 2, len(STEPS))) + rng.standard_normal((PAIRS, 2, 1))
        ends = means + SD / math.sqrt(2) * noise
        found = steps_saved([tuple(list(zip(STEPS, one, strict=True)) for one in pair) for pair in ends.tolist()], 0.05)
        if isinstance(found, Saved) and found.ratio and found.low and found.high:
            covered[0] += found.low <= ratio <= found.high
            logs[0].append(math.log(found.ratio))
        each = [by_line(*pair) for pair in ends]
        low, high = stats.t.interval(0.95, PAIRS - 1, np.mean(each), stats.sem(each))
        covered[1] += low <= math.log(ratio) <= high
        logs[1].append(np.mean(each))
    cells = [
        f"{100 * n / max(1, len(each)):.1f} ({math.exp(np.mean(each)):.2f})"
        for n, each in zip(covered, logs, strict=True)
    ]
    return f"| {name} | {ratio:.2f} | {' | '.join(cells)} |"


def section(draws: int) -> str:
    rows = [row(name, curve, ratio, draws) for name, curve in CURVES.items() for ratio in RATIOS]
    steps = ", ".join(f"{each:,}" for each in STEPS[:-1]) + f" and {STEPS[-1]:,}"
    return TEXT.format(title=TITLE, draws=draws, steps=steps, sd=SD, pairs=PAIRS, rows="\n".join(rows))


if __name__ == "__main__":
    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), section(draws), NEXT), encoding="utf-8")
