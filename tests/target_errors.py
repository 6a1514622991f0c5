"""Error rates against a target, by simulation that shares no function with the product.

`python tests/target_errors.py` writes the tables of docs/against-a-target.md; contest_rules.json quotes some of their rates.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

PAGE = Path(__file__).parents[1] / "docs" / "against-a-target.md"
START, END = "<!-- simulated: python tests/target_errors.py -->", "<!-- end of what is simulated -->"
DRAWS = 100_000

Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

NOISES: dict[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails (Student's t, 3 degrees of freedom)": lambda rng, shape: rng.standard_t(3, shape),
    "a long tail of bad runs (exponential)": lambda rng, shape: rng.exponential(size=shape) - 1,
    "a long tail of good runs (exponential)": lambda rng, shape: 1 - rng.exponential(size=shape),
}
"""Noise with mean 0 around a target of 0; lower is better."""


def p_below(x: np.ndarray, number: float | np.ndarray = 0.0) -> np.ndarray:
    """The p of the one-sided t test that the mean is below `number`, over the last axis."""
    n = x.shape[-1]
    t = (x.mean(-1) - number) / (x.std(-1, ddof=1) / math.sqrt(n))
    return np.asarray(stats.t.cdf(t, n - 1))


def noise_rates(draws: int = DRAWS, alpha: float = 0.01) -> Iterator[tuple[str, int, float, float]]:
    """Kind of noise, runs, and the rates of false "reached" and of false "missed", of an entry exactly at the target."""
    rng = np.random.default_rng(0)
    for name, noise in NOISES.items():
        for n in (3, 5, 10, 20):
            p = p_below(noise(rng, (draws, n)))
            yield name, n, float(np.mean(p <= alpha)), float(np.mean(p >= 1 - alpha))


def holm_rates(entries: int = 10, n: int = 5, alpha: float = 0.01, draws: int = DRAWS // 4) -> tuple[float, float]:
    """The rates at which any of some null entries is reached, each alone at alpha, and by Holm's method."""
    p = p_below(np.random.default_rng(1).normal(size=(draws, entries, n))).min(-1)
    return float(np.mean(p <= alpha)), float(np.mean(p <= alpha / entries))


def until_significant(first: int, last: int, alpha: float = 0.01, draws: int = DRAWS // 2) -> float:
    """The rate at which a null entry is reached if it is tested after every new run."""
    x = np.random.default_rng(2).normal(size=(draws, last))
    return float(np.mean(np.any([p_below(x[:, :n]) <= alpha for n in range(first, last + 1)], axis=0)))


def known_sd_rate(ratio: float, alpha: float) -> float:
    """The rate of false "reached" if the true SD is `ratio` times the one that is taken as known: exact."""
    return float(stats.norm.sf(stats.norm.isf(alpha) / ratio))


def best_of(runs: int, kept: int, alpha: float, draws: int = DRAWS) -> float:
    """The rate at which a null entry is reached if the best runs are reported."""
    x = np.sort(np.random.default_rng(3).normal(size=(draws, runs)), axis=-1)[:, :kept]
    return float(np.mean(p_below(x) <= alpha))


def against_a_measured_record(runs: int, alpha: float, draws: int = DRAWS) -> float:
    """The rate at which an entry exactly at the target is reached if the target is a record's mean of as many runs."""
    rng = np.random.default_rng(4)
    record = rng.normal(size=(draws, runs)).mean(-1)
    return float(np.mean(p_below(rng.normal(size=(draws, runs)), record) <= alpha))


def any_of(entries: int, alpha: float) -> float:
    """The rate at which any of some null entries is reached against a fixed target: exact."""
    return 1 - (1 - alpha) ** entries


def false_records(entries: int, runs: int, alpha: float, draws: int = DRAWS // 5) -> tuple[float, float]:
    """Entries in turn that equal the first record; each replaces the last one if it is below its mean at `alpha`.

    The rate of any false record, and how far the record's mean falls below the truth, in SDs of a run.
    """
    rng = np.random.default_rng(5)
    record = rng.normal(size=(draws, runs)).mean(-1)
    any_false = np.zeros(draws, dtype=bool)
    for _ in range(entries):
        x = rng.normal(size=(draws, runs))
        wins = p_below(x, record) <= alpha
        any_false |= wins
        record = np.where(wins, x.mean(-1), record)
    return float(np.mean(any_false)), float(-record.mean())


def planned_looks(draws: int = 4 * DRAWS, alpha: float = 0.01) -> tuple[float, float]:
    """The rates of false "reached" at looks at 3 and 6 runs: at alpha each, and at the product's levels.

    The levels are all that this file takes from the product.
    """
    from partwise.comparison.stats.group_sequential import nominal_levels

    x = np.random.default_rng(6).normal(size=(draws, 6))
    p = [p_below(x[:, :n]) for n in (3, 6)]
    levels = [level / 2 for level in nominal_levels((3, 6), 2 * alpha)]
    missed_first = p[0] >= 1 - levels[0]
    spent = (p[0] <= levels[0]) | (~missed_first & (p[1] <= levels[1]))
    return float(np.mean((p[0] <= alpha) | (p[1] <= alpha))), float(np.mean(spent))


def median_rates(draws: int = DRAWS // 2, alpha: float = 0.01) -> Iterator[tuple[int, float, float, float]]:
    """Runs, and three rates for times whose median is the target, a fifth of them never arriving.

    The false "reached" of the sign test; how often the interval of order statistics misses the median; the false "reached" of
    a t test that drops the runs that never arrive.
    """
    rng = np.random.default_rng(8)
    for n in (7, 10, 20):
        u = rng.uniform(size=(draws, n))
        times = np.where(
            u > 0.8, np.inf, -np.log1p(-u) / math.log(2)
        )  # exponential with median 1, late ones never arrive
        below = np.sum(times < 1, -1)
        reached = stats.binom.sf(below - 1, n, 0.5) <= alpha
        rank = int(np.sum(stats.binom.cdf(np.arange(n), n, 0.5) <= alpha))
        ordered = np.sort(times, axis=-1)
        missed = (ordered[:, rank - 1] > 1) | (ordered[:, n - rank] < 1)
        arrived = np.isfinite(times)
        count = arrived.sum(-1)
        kept = np.where(arrived, times, 0.0)
        mean = kept.sum(-1) / np.maximum(count, 1)
        spread = np.sqrt(np.where(arrived, (kept - mean[:, None]) ** 2, 0).sum(-1) / np.maximum(count - 1, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            t = (mean - 1) / (spread / np.sqrt(count))
        dropped = (count > 1) & (stats.t.cdf(t, np.maximum(count - 1, 1)) <= alpha)
        yield n, float(np.mean(reached)), float(np.mean(missed)), float(np.mean(dropped))


def rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    body = [" | ".join(line) for line in (head, ["---", *["---:"] * (len(head) - 1)], *lines)]
    return "\n".join(f"| {line} |" for line in body)


def percent(rate: float) -> str:
    return f"{100 * rate:.1f}%" if rate >= 0.002 else f"{100 * rate:.2f}%"


def section() -> str:
    by_noise: dict[str, list[str]] = {}
    for name, _, reached, missed in noise_rates():
        by_noise.setdefault(name, []).append(f"{percent(reached)}, {percent(missed)}")
    alone, by_holm = holm_rates()
    each, spent = planned_looks()
    practices = [
        ["one test of a fixed number of runs", "1.0%"],
        ["ten null entries of 5 runs, each at 1%: any false", percent(alone)],
        ["ten null entries of 5 runs, Holm's method: any false", percent(by_holm)],
        ["a test after every new run, from 3 to 10", percent(until_significant(3, 10))],
        ["a test after every new run, from 3 to 20", percent(until_significant(3, 20))],
        ["looks at 3 and 6 runs, each at 1%", percent(each)],
        ["`--looks 3,6`", percent(spent)],
        ["7 runs made, the best 5 reported", percent(best_of(7, 5, 0.01))],
        ["10 runs made, the best 5 reported", percent(best_of(10, 5, 0.01))],
        ["the target is a record's mean of 3 runs, 3 runs against it", percent(against_a_measured_record(3, 0.01))],
        ["the target is a record's mean of 5 runs, 5 runs against it", percent(against_a_measured_record(5, 0.01))],
    ]
    known = [
        [f"{ratio:g} times the known one", percent(known_sd_rate(ratio, 0.01)), percent(known_sd_rate(ratio, 0.001))]
        for ratio in (0.8, 1, 1.2, 1.5, 2)
    ]
    chain, drift = false_records(10, 3, 0.25)
    strict, _ = false_records(10, 3, 0.01)
    end = [
        ["ten null entries against a fixed number", percent(any_of(10, 0.01)), percent(any_of(10, 0.25))],
        [
            "ten null entries of 3 runs in turn, each against the last record's mean of 3",
            percent(strict),
            percent(chain),
        ],
        [
            "7 runs made, the best 5 reported, against a fixed number",
            percent(best_of(7, 5, 0.01)),
            percent(best_of(7, 5, 0.25)),
        ],
    ]
    medians = [[str(n), percent(reached), percent(missed), percent(t)] for n, reached, missed, t in median_rates()]
    return "\n\n".join(
        [
            START,
            "False *reached* and false *missed* of an entry whose true mean is exactly the target, at alpha 1%:",
            rows(
                ["noise of the runs", "3 runs", "5 runs", "10 runs", "20 runs"], [[k, *v] for k, v in by_noise.items()]
            ),
            "How often a null entry with normal noise is *reached* at alpha 1%, by what was done:",
            rows(["practice", "false *reached*"], practices),
            "A known SD, if the true one is another:",
            rows(["true SD", "alpha 1%", "alpha 0.1%"], known),
            "At p < 0.01 and at p < 0.25. After ten null entries in turn at p < 0.25 the record stands "
            f"{drift:.2f} SDs of a run below the truth:",
            rows(["any false record", "p < 0.01", "p < 0.25"], end),
            "Times to a loss, a fifth of the runs never arriving, the true median exactly the target, alpha 1%:",
            rows(
                [
                    "runs",
                    "false *reached*, sign test",
                    "the 98% interval misses the median",
                    "false *reached*, t test of those that arrive",
                ],
                medians,
            ),
            END,
        ]
    )


def with_section(page: str) -> str:
    """The page with its simulated tables made anew."""
    before, rest = page.split(START)
    return before + section() + rest.split(END)[1]


def main() -> None:
    PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
