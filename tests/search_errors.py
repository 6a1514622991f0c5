"""Error rates of searches, by simulation that shares no function with the product.

`python tests/search_errors.py` writes the tables of docs/searching.md, in some minutes on one core; with a number of
searches, `python tests/search_errors.py 500`, it prints them. The settings of the rule were chosen with seed 1, and the
tables have seed 2.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from search_bandits import TopTwo, UpperBounds, halving
from search_levels import Addis, ELond, RuleWithSaffron, TenRuns
from search_methods import AgainstFreshRun, BestOf, Informed, Race, Rule
from search_worlds import ALL_NOISES, EFFECT, MEASURED, Method, Outcome, World, simulate

PAGE = Path(__file__).parents[1] / "docs" / "searching.md"
START, END = "<!-- simulated: python tests/search_errors.py -->", "<!-- end of what is simulated -->"
SEARCHES, SEED = 2000, 2

METHODS: dict[str, Callable[[], Method]] = {
    "`partwise`": Rule,
    "one run each, against the run of the best": lambda: BestOf(1),
    "one run each, against a new run of the best": AgainstFreshRun,
    "best of three, against the best of three": lambda: BestOf(3),
    "one run each, 2 SDs better than the run of the best": lambda: BestOf(1, EFFECT),
    "a race with t tests at 5%, as in irace": Race,
    "the same runs at the levels of SAFFRON": RuleWithSaffron,
    "LORD, ten runs each": TenRuns,
    "ADDIS, ten runs each": Addis,
    "e-LOND with an any-time t test": ELond,
    "Bayes' rule, told the SD, the mean of the best, the gain and how many help": Informed,
}

BANDITS = {
    "top-two Thompson sampling, told the SD, as many runs as `partwise`": TopTwo,
    "upper confidence bounds with e-BH, told the SD, as many runs": UpperBounds,
}


def methods_table(searches: int) -> str:
    few = max(20, searches // 10)
    worlds = [(World(), searches), (World(400, 40), few), (World(40, 0), searches)]
    lines, costs = [], list[float]()
    for name, make in METHODS.items():
        small, large, none = (simulate(make(), world, count, SEED) for world, count in worlds)
        costs = costs or [each.cost for each in (small, large, none)]  # of the rule
        kept = f"{small.false.mean():.1f}"
        lines.append([name, kept, *columns(small), *columns(large), percent(none.any_false)])
    for name, factor in (("successive halving, told how many help", 1), ("successive halving, told twice as many", 2)):
        small, large = (halving(world, count, factor * world.helpful, SEED) for world, count in worlds[:2])
        lines.append([name, f"{small.false.mean():.1f}", *columns(small), *columns(large), "100.0%"])
    for name, bandit in BANDITS.items():
        found = [bandit().search(world, count, cost, SEED) for (world, count), cost in zip(worlds, costs, strict=True)]
        kept = f"{found[0].false.mean():.1f}"
        lines.append([name, kept, *columns(found[0]), *columns(found[1]), percent(found[2].any_false)])
    head = ["keep by", "false kept", "false", "found", "runs"]
    head += ["false, 400", "found, 400", "runs, 400", "any false if nothing helps"]
    return rows(head, lines)


def columns(outcome: Outcome) -> list[str]:
    return [percent(outcome.false_proportion), f"{100 * outcome.found:.0f}%", f"{outcome.cost:.2f}"]


def worlds_table(searches: int) -> str:
    """The rule in other worlds, and with a pool of its own for each candidate."""
    few = max(20, searches // 10)
    others, measured = list(ALL_NOISES.items())[1:], ALL_NOISES[MEASURED]
    worlds: list[tuple[str, World, Rule, int]] = [
        ("as above", World(), Rule(), searches),
        ("each candidate against a pool of its own", World(), Rule(shared=False), searches),
        ("40 changes, nothing helps, half harm", World(40, 0), Rule(), searches),
        ("40 changes that do nothing", World(40, 0, 0.0), Rule(), searches),
        ("the same, each against a pool of its own", World(40, 0, 0.0), Rule(shared=False), searches),
        ("400 changes that do nothing", World(400, 0, 0.0), Rule(), few),
        ("40 changes, one helps, the others do nothing", World(40, 1, 0.0), Rule(), searches),
        *((name, World(noise=noise), Rule(), searches) for name, noise in others),
        *((f"nothing helps, {name}", World(40, 0, 0.0, noise), Rule(), searches) for name, noise in others),
        (f"{MEASURED}, 400 changes", World(400, 40, noise=measured), Rule(), few),
        (f"{MEASURED}, 400 changes, nothing helps, half harm", World(400, 0, noise=measured), Rule(), few),
        (f"{MEASURED}, printed to a third of an SD", World(noise=measured, digit=1 / 3), Rule(), searches),
        (f"{MEASURED}, printed so, nothing helps, half harm", World(40, 0, noise=measured, digit=1 / 3), Rule(), searches),
        ("the SD of candidates is 1.5 times as large as that of the best", World(spread=1.5), Rule(), searches),
        ("nothing helps, the SD of candidates is 1.5 times as large", World(40, 0, 0.0, spread=1.5), Rule(), searches),
    ]  # fmt: skip
    lines = []
    for name, world, rule, count in worlds:
        found = simulate(rule, world, count, SEED)
        share = f"{100 * found.found:.0f}%" if world.helpful else "-"
        lines.append([name, percent(found.false_proportion), percent(found.any_false), share, f"{found.cost:.2f}"])
    return rows(["search", "false", "any false", "found", "runs"], lines)


def rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    body = [" | ".join(line) for line in (head, ["---", *["---:"] * (len(head) - 1)], *lines)]
    return "\n".join(f"| {line} |" for line in body)


def percent(rate: float) -> str:
    return f"{100 * rate:.1f}%"


def section(searches: int = SEARCHES) -> str:
    return "\n\n".join(
        [
            START,
            "40 changes: 4 help by 2 SDs of a run, and half of the others harm by as much; then 400 of the same kind:",
            methods_table(searches),
            "The rule in other searches:",
            worlds_table(searches),
            END,
        ]
    )


def main() -> None:
    if len(sys.argv) > 1:
        print(section(int(sys.argv[1])))
        return
    before, rest = PAGE.read_text(encoding="utf-8").split(START)
    PAGE.write_text(before + section() + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
