"""Errors and price of a t test that is asked after every run, by simulation that shares no function with the product.

`python tests/any_time_errors.py` writes the tables of docs/any-time.md.
"""

import math
from pathlib import Path

import numpy as np
from scipy import special, stats

from search_worlds import NOISES, Noise
from target_errors import percent, rows

PAGE = Path(__file__).parents[1] / "docs" / "any-time.md"
START, END = "<!-- simulated: python tests/any_time_errors.py -->", "<!-- end of what is simulated -->"
RUNS, DRAWS = 500, 4000


def log_factor(t: np.ndarray, n: np.ndarray) -> np.ndarray:
    """log of the Bayes factor of a positive mean, from t statistics: sums of squares and of values instead of t."""
    total = t * np.sqrt(n / (n - 1 + t * t))  # sum(x) / sqrt(sum(x^2))
    left = 1 - total * total / (1 + n)  # of sum(x^2), after the prior's share
    upper = special.stdtr(n, total / np.sqrt(left) * np.sqrt(n / (1 + n)))
    return np.asarray(np.log(2 * upper) - 0.5 * np.log(1 + n) - 0.5 * n * np.log(left))


def boundary(runs: int, alpha: float) -> np.ndarray:
    """The t statistic that decides after 2, ..., `runs` runs; inf where none can."""
    n = np.arange(2.0, runs + 1)
    low, high = np.zeros(n.shape), np.full(n.shape, 1e6)
    possible = log_factor(high, n) >= -math.log(alpha)
    for _ in range(80):
        middle = (low + high) / 2
        over = log_factor(middle, n) >= -math.log(alpha)
        low, high = np.where(over, low, middle), np.where(over, middle, high)
    return np.where(possible, high, np.inf)


def t_paths(mean: float, runs: int, draws: int, noise: Noise, seed: int) -> np.ndarray:
    """t statistics of "better by `mean`" after 2, ..., `runs` runs, lower being better: (draws, runs - 1)."""
    x = mean - noise(np.random.default_rng(seed), (draws, runs))
    n = np.arange(1, runs + 1)
    total, squares = x.cumsum(1), (x * x).cumsum(1)
    spread = np.sqrt((squares - total**2 / n)[:, 1:] / (n - 1)[1:])
    return np.asarray(total[:, 1:] / (np.sqrt(n[1:]) * spread))


def ever(t: np.ndarray, critical: np.ndarray) -> float:
    """How often a path is ever above its boundary."""
    return float(np.mean((t >= critical).any(1)))


def error_rates(draws: int = DRAWS, runs: int = RUNS) -> list[list[str]]:
    n = np.arange(2, runs + 1)
    lines = []
    for name, noise in NOISES.items():
        t = t_paths(0.0, runs, draws, noise, 1)
        line = [name]
        for alpha in (0.025, 0.01):
            line += [percent(ever(t, boundary(runs, alpha))), percent(ever(t, stats.t.isf(alpha, n - 1)))]
        lines.append(line)
    return lines


def price(effect: float, alpha: float, draws: int = DRAWS, runs: int = RUNS) -> tuple[int, float, int]:
    """Runs of a fixed t test with 80% power; mean runs until the any-time test decides, and those of 80% of the paths."""
    fixed = next(
        n for n in range(2, 1000) if stats.nct.sf(stats.t.isf(alpha, n - 1), n - 1, effect * math.sqrt(n)) >= 0.8
    )
    above = t_paths(effect, runs, draws, NOISES["normal"], 2) >= boundary(runs, alpha)
    first = np.where(above.any(1), above.argmax(1) + 2, runs)
    return fixed, float(first.mean()), int(np.quantile(first, 0.8, method="higher"))


def section() -> str:
    head = ["noise of the runs", "2.5%", "t test after every run", "1%", "t test after every run"]
    prices = []
    for effect in (0.5, 1.0, 1.5, 2.0, 3.0):
        line = [f"{effect:g} SDs"]
        for alpha in (0.025, 0.01):
            fixed, average, most = price(effect, alpha, DRAWS // 2)
            line += [str(fixed), f"{average:.1f}", str(most)]
        prices.append(line)
    columns = ["true mean", *(["fixed", "any time, mean", "any time, 80%"] * 2)]
    return "\n\n".join(
        [
            START,
            f"How often a true mean of exactly the number is ever called better, asked after each of 2 to {RUNS} runs:",
            rows(head, error_rates()),
            "Runs until it is decided, at an error of 2.5% (first three columns) and 1%:",
            rows(columns, prices),
            END,
        ]
    )


def main() -> None:
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(before + section() + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
