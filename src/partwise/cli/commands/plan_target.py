"""`plan --target`: how many runs show that a mean is better than a number. Imports no torch."""

from typing import Any

from partwise.cli.commands.power_table import parse_numbers, percent
from partwise.cli.terminal import console, print_json, table
from partwise.comparison.stats.group_sequential import check_looks
from partwise.comparison.targets.runs_needed import (
    check_spread,
    detectable_distance,
    power_against_target,
    power_with_looks,
    runs_needed,
)
from partwise.comparison.targets.target import Target
from partwise.config import ConfigError

RUN_COUNTS = (3, 4, 5, 7, 10, 15, 20, 30)
POWERS = (0.8, 0.9, 0.95)


def plan_target(
    *,
    target: float,
    sd: float | None,
    effect: float | None,
    alpha: float,
    entries: int,
    looks: str | None = None,
    as_json: bool,
) -> None:
    """Print the runs that an entry needs, or the power of planned looks. Raises ConfigError without `sd`."""
    if sd is None:
        raise ConfigError("plan --target needs --sd, the SD of single runs, as in --sd 0.0013")
    Target(target, alpha)  # checks both
    check_spread(sd)
    if effect is None and looks is not None:
        raise ConfigError(f"--looks {looks}: give --effect, the distance from the target to compute the power for")
    level = alpha / entries
    needed = {} if effect is None else {power: runs_needed(effect, sd, level, power) for power in POWERS}
    rows = [
        {
            "runs": n,
            "power": None if effect is None else power_against_target(effect, sd, n, level),
            "detectable": detectable_distance(sd, n, level),
        }
        for n in RUN_COUNTS
    ]
    planned: dict[str, Any] | None = None
    if looks is not None and effect is not None:
        at = check_looks(parse_numbers("--looks", looks, "numbers of runs, such as 3,6"))
        power, mean_runs = power_with_looks(effect, sd, at, level)
        planned = {"looks": list(at), "power": power, "mean_runs": mean_runs}
    plan: dict[str, Any] = {
        "target": target,
        "effect": effect,
        "sd": sd,
        "alpha": alpha,
        "entries": entries,
        "rows": rows,
    }
    plan |= {"runs_needed": {str(power): n for power, n in needed.items()}, "planned_looks": planned}
    if as_json:
        print_json(plan)
    else:
        show(plan)


def show(plan: dict[str, Any]) -> None:
    """Print a table of numbers of runs, and how many the distance needs."""
    effect, several = plan["effect"], plan["entries"] > 1
    columns = ["runs", *([] if effect is None else [f"reached if {effect:g} better"]), "distance reached in 80%"]
    rows = [
        [row["runs"], *([] if effect is None else [percent(row["power"])]), f"{row['detectable']:.3g}"]
        for row in plan["rows"]
    ]
    family = f", the first of {plan['entries']} entries" if several else ""
    title = f"target {plan['target']:g}, SD of a run {plan['sd']:g}, alpha {plan['alpha']:g}{family}"
    console.print(table(title, columns, rows))
    if plan["runs_needed"]:
        counts = ", ".join(f"{n:,} runs in {float(power):.0%}" for power, n in plan["runs_needed"].items())
        console.print(f"a mean that is {effect:g} better than the target is shown by {counts} of cases", markup=False)
    if looks := plan["planned_looks"]:
        at = ", ".join(map(str, looks["looks"]))
        console.print(
            f"looks at {at} runs: reached in {percent(looks['power'])}, after {looks['mean_runs']:.1f} runs on average",
            markup=False,
        )
    console.print(
        "An SD from few runs is often too small: the 80% upper limit of one from 5 runs is 1.6 times it.", markup=False
    )
