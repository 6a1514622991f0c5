"""What follows from a comparison: its winner again on fresh seeds, or the same question over sizes and horizons."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from partwise.checkpoint import write_json
from partwise.comparison.digits import decimals, show
from partwise.comparison.experiment import Comparison, Watching, planned
from partwise.comparison.protocol import Claim, Rules
from partwise.comparison.report import write_report
from partwise.comparison.report.figures import draw_forest
from partwise.comparison.request import Request
from partwise.comparison.tuning import check_seeds
from partwise.inspection.page import Figure, Look, write_page
from partwise.overrides import parse_grid
from partwise.train.names import default_name

FRESH = 100_000
"""By how much the seeds of a confirmation lie above those of its comparison."""


def winner(results: dict[str, Any]) -> dict[str, Any] | None:
    """The claim called better by the widest mean, if any."""
    better = [row for row in results["comparisons"] if row["role"] == "claim" and row["verdict"] == "better"]
    return max(better, key=lambda row: abs(row["mean"]), default=None)


def confirming(comparison: Comparison) -> Comparison | None:
    """The winner of a finished comparison against what it beat, as they were, on as many seeds that nothing was chosen by.

    Raises ConfigError where such seeds would serve tuning as well.
    """
    row = winner(comparison.results)
    plan = comparison.plan
    if row is None or row["against"] not in {arm.name for arm in plan.arms}:
        return None
    again = replace(
        plan,
        arms=(plan.arm(row["against"]), plan.arm(row["arm"])),
        seeds=max(row["n"], 4),
        rules=replace(plan.rules, looks=(), variance="pair"),
        claims=(Claim(row["arm"], row["against"]),),
        first_seed=plan.first_seed + FRESH,
        sums={},
    )
    check_seeds(again)
    path = comparison.path.with_name(f"{comparison.path.name[:110]}-confirm")
    command, crew = f"{comparison.command} --confirm", (comparison.workers, comparison.together)
    return Comparison(path, again, command, comparison.imports, *crew)


def add_confirmation(comparison: Comparison, confirmation: Comparison) -> dict[str, Any]:
    """What the fresh seeds said, written into the results and the report of the comparison that they confirm."""
    (row,) = confirmation.results["comparisons"]
    kept = ("arm", "against", "verdict", "mean", "low", "high", "p", "n", "alpha", "sentence")
    comparison.results["confirmation"] = {key: row[key] for key in kept} | {"seeds": confirmation.results["seeds"]}
    write_json(comparison.path / "results.json", comparison.results)
    write_report(comparison.results, comparison.path)
    return row


def grid_of(request: Request, texts: list[str], name: str | None, **settings: Any) -> Iterator[tuple[str, Comparison]]:
    """One comparison for each combination, checked but not begun."""
    base = name or request.name()
    for words in itertools.product(*parse_grid(texts)):
        cell = request.model_copy(update={"common": [*request.common, *words]})
        yield " ".join(words), planned(cell, default_name([base[:80], *words]), **settings)


def run_grid(
    cells: list[tuple[str, Comparison]], watching: Watching, path: Path, question: str
) -> list[dict[str, Any]]:
    """Run every cell that is not finished; what each found, also as `grid.json` and `grid.html` in `path`.

    Each cell has its own verdict; nothing is said between the cells or beyond them.
    """
    rows: list[dict[str, Any]] = []
    path.mkdir(parents=True, exist_ok=True)
    for words, comparison in cells:
        with watching(comparison) as watch:
            results = comparison.run(watch)
        for row in results["comparisons"]:
            if row["role"] == "claim":
                kept = ("arm", "against", "verdict", "mean", "low", "high", "p", "n", "alpha", "looks", "total_alpha")
                rows.append({"cell": words, **{key: row[key] for key in kept}, "folder": comparison.path.name})
        write_json(path / "grid.json", {"question": question, "margin": comparison.plan.rules.margin, "rows": rows})
    write_page(path / "grid.html", path.name, grid_page(question, rows, comparison.plan.rules))
    return rows


def grid_page(question: str, rows: list[dict[str, Any]], rules: Rules) -> Look:
    columns = ["", "setting", "change", "seeds", "mean", "interval", "sign", "verdict"]
    figure = Figure(
        "The difference in each setting",
        draw_forest(rows, rules.margin, rules.lower_is_better, "g"),
        f"Rows as in the table; the band is the margin of ±{rules.margin:g}. Every row has its own verdict.",
    )
    cells = [[str(number), *cell_row(row)] for number, row in enumerate(rows, start=1)]
    return Look(question, "Nothing is extrapolated to settings that were not run.", columns, cells, [figure])


def cell_row(row: dict[str, Any]) -> list[str]:
    """Setting, change, seeds, mean, interval, sign and verdict."""
    if row["low"] is None or row["high"] is None or row["mean"] is None:
        return [row["cell"], row["arm"], str(row["n"]), "-", "-", "-", row["verdict"] or "no verdict"]
    places = decimals((row["high"] - row["low"]) / 2, (row["low"], row["high"]))
    sign = "+" if row["low"] > 0 else "-" if row["high"] < 0 else "0"
    interval = f"{show(row['low'], places)} to {show(row['high'], places)}"
    return [row["cell"], row["arm"], str(row["n"]), show(row["mean"], places), interval, sign, str(row["verdict"])]
