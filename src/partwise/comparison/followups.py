"""Follow-ups of a comparison: replicate its winner on fresh seeds, or repeat the question over a grid of settings."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from partwise.checkpoint import write_json
from partwise.comparison.design.request import Request
from partwise.comparison.experiment import Comparison, ProgressDisplay, make_comparison
from partwise.comparison.report import write_report
from partwise.comparison.report.figures import draw_forest
from partwise.comparison.stats.number_format import choose_decimals, format_number
from partwise.comparison.stats.protocol import Claim, Rules
from partwise.comparison.tuning import check_seeds
from partwise.config.overrides import parse_grid
from partwise.plots.page import Figure, Page, write_page
from partwise.train.run_names import default_run_name

REPLICATION_SEED_OFFSET = 100_000
"""The first seed of a replication minus that of its comparison."""


def winner(results: dict[str, Any]) -> dict[str, Any] | None:
    """The claim with verdict 'better' and the largest mean difference, if any."""
    better = [row for row in results["comparisons"] if row["role"] == "claim" and row["verdict"] == "better"]
    return max(better, key=lambda row: abs(row["mean"]), default=None)


def make_replication(comparison: Comparison) -> Comparison | None:
    """The winner of a finished comparison against the arm it beat, unchanged, on as many fresh seeds; None without a winner.

    Raises ConfigError if those seeds overlap the tuning seeds.
    """
    row = winner(comparison.results)
    plan = comparison.plan
    if row is None or row["against"] not in {arm.name for arm in plan.arms}:
        return None
    replication = replace(
        plan,
        arms=(plan.arm(row["against"]), plan.arm(row["arm"])),
        seeds=max(row["n"], 4),
        rules=replace(plan.rules, looks=(), variance="pair"),
        claims=(Claim(row["arm"], row["against"]),),
        first_seed=plan.first_seed + REPLICATION_SEED_OFFSET,
        additive_predictions={},
    )
    check_seeds(replication)
    path = comparison.path.with_name(f"{comparison.path.name[:110]}-replication")
    command, parallelism = f"{comparison.command} --replicate", (comparison.workers, comparison.seeds_per_process)
    return Comparison(path, replication, command, comparison.imports, *parallelism)


def add_replication(comparison: Comparison, replication: Comparison) -> dict[str, Any]:
    """Add the outcome of a finished replication to the comparison's results and report."""
    (row,) = replication.results["comparisons"]
    keys = ("arm", "against", "verdict", "mean", "low", "high", "p", "n", "alpha", "sentence")
    comparison.results["replication"] = {key: row[key] for key in keys} | {"seeds": replication.results["seeds"]}
    write_json(comparison.path / "results.json", comparison.results)
    write_report(comparison.results, comparison.path)
    return row


def make_grid(
    request: Request, texts: list[str], name: str | None, **settings: Any
) -> Iterator[tuple[str, Comparison]]:
    """One comparison per combination of the grid's values, validated but not started."""
    base = name or request.name()
    for words in itertools.product(*parse_grid(texts)):
        cell = request.model_copy(update={"common": [*request.common, *words]})
        yield " ".join(words), make_comparison(cell, default_run_name([base[:80], *words]), **settings)


def run_grid(
    cells: list[tuple[str, Comparison]], show_progress: ProgressDisplay, path: Path, question: str
) -> list[dict[str, Any]]:
    """Run every unfinished cell and return a row per claim, also written to `grid.json` and `grid.html` in `path`.

    Each cell has its own verdict; cells are neither pooled nor extrapolated.
    """
    rows: list[dict[str, Any]] = []
    path.mkdir(parents=True, exist_ok=True)
    for words, comparison in cells:
        with show_progress(comparison) as on_progress:
            results = comparison.run(on_progress)
        for row in results["comparisons"]:
            if row["role"] == "claim":
                keys = ("arm", "against", "verdict", "mean", "low", "high", "p", "n", "alpha", "looks", "total_alpha")
                rows.append({"cell": words, **{key: row[key] for key in keys}, "folder": comparison.path.name})
        write_json(path / "grid.json", {"question": question, "margin": comparison.plan.rules.margin, "rows": rows})
    write_page(path / "grid.html", path.name, grid_page(question, rows, comparison.plan.rules))
    return rows


def grid_page(question: str, rows: list[dict[str, Any]], rules: Rules) -> Page:
    columns = ["", "setting", "change", "seeds", "mean", "interval", "sign", "verdict"]
    figure = Figure(
        "The difference in each setting",
        draw_forest(rows, rules.margin, rules.lower_is_better, "g"),
        f"Rows as in the table; the band is the margin of ±{rules.margin:g}. Every row has its own verdict.",
    )
    cells = [[str(number), *cell_row(row)] for number, row in enumerate(rows, start=1)]
    return Page(question, "Nothing is extrapolated to settings that were not run.", columns, cells, [figure])


def cell_row(row: dict[str, Any]) -> list[str]:
    """Setting, change, seeds, mean, interval, sign and verdict."""
    if row["low"] is None or row["high"] is None or row["mean"] is None:
        return [row["cell"], row["arm"], str(row["n"]), "-", "-", "-", row["verdict"] or "no verdict"]
    decimals = choose_decimals((row["high"] - row["low"]) / 2, (row["low"], row["high"]))
    mean, low, high = (format_number(row[key], decimals) for key in ("mean", "low", "high"))
    sign = "+" if row["low"] > 0 else "-" if row["high"] < 0 else "0"
    return [row["cell"], row["arm"], str(row["n"]), mean, f"{low} to {high}", sign, str(row["verdict"])]
