"""Follow-ups of a comparison: replicate its winner on fresh seeds, or repeat the question over a grid of settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from partwise.comparison.experiment import Comparison, ProgressDisplay
from partwise.comparison.report import show_report
from partwise.comparison.report.figures import draw_forest
from partwise.comparison.results import Replication, Results
from partwise.comparison.stats.adjusted import replication_seeds
from partwise.comparison.stats.effect import Effect
from partwise.comparison.stats.number_format import choose_decimals, format_number
from partwise.comparison.stats.protocol import Rules
from partwise.comparison.tuning import check_seeds
from partwise.drafts import remove_leftovers
from partwise.files import refuse_links
from partwise.json_files import write_json
from partwise.messages import attempt
from partwise.plots.drawing import Drawing
from partwise.plots.page import Page, PageFigure, write_page
from partwise.run_names import explain_write_errors

REPLICATION_SEED_OFFSET = 100_000
"""The first seed of a replication minus that of its comparison."""


@dataclass(frozen=True)
class GridRow:
    """The effect of one claim in one setting of a grid."""

    cell: str
    effect: Effect
    folder: str

    def to_dict(self) -> dict[str, Any]:
        keys = ("arm", "against", "verdict", "mean", "low", "high", "p", "n", "alpha", "looks", "total_alpha")
        effect = self.effect.to_dict()
        return {"cell": self.cell, **{key: effect[key] for key in keys}, "folder": self.folder}

    def cells(self) -> list[str]:
        """Setting, change, seeds, mean, interval, sign and verdict."""
        effect, start = self.effect, [self.cell, self.effect.arm, str(self.effect.n)]
        if effect.low is None or effect.high is None or effect.mean is None:
            return [*start, "-", "-", "-", effect.verdict or "no verdict"]
        decimals = choose_decimals((effect.high - effect.low) / 2, (effect.low, effect.high))
        mean, low, high = (format_number(value, decimals) for value in (effect.mean, effect.low, effect.high))
        sign = "+" if effect.low > 0 else "-" if effect.high < 0 else "0"
        return [*start, mean, f"{low} to {high}", sign, str(effect.verdict)]


def winner(results: Results) -> Effect | None:
    """The claim with verdict 'better' and the largest mean difference, if any."""
    better = [claim.effect for claim in results.claims if claim.role == "claim" and claim.effect.verdict == "better"]
    return max(better, key=lambda effect: abs(effect.mean or 0.0), default=None)


def make_replication(comparison: Comparison) -> tuple[Comparison, str] | None:
    """The winner of a finished comparison against the arm it beat, unchanged, on fresh seeds; and why so many.

    None without a winner. Raises ConfigError if those seeds overlap the tuning seeds.
    """
    effect = winner(comparison.results)
    plan = comparison.plan
    if effect is None or effect.against not in {arm.name for arm in plan.arms}:
        return None
    seeds, reason = replication_seeds(effect, plan.rules.alpha, plan.rules.method)
    replication = replace(
        plan,
        arms=(plan.arm(effect.against), plan.arm(effect.arm)),
        seeds=seeds,
        rules=replace(plan.rules, looks=()),
        claims=(next(claim for claim in plan.claims if claim[:2] == (effect.arm, effect.against)),),
        first_seed=plan.first_seed + REPLICATION_SEED_OFFSET,
        additive_predictions={},
    )
    check_seeds(replication)
    path = comparison.path.with_name(f"{comparison.path.name[:110]}-replication")
    command = f"{comparison.command} --replicate"
    workload = comparison.workload.with_command(command)
    origin = {"replicates": comparison.path.name}
    return type(comparison)(path, replication, workload, command, origin=origin), reason


def add_replication(comparison: Comparison, replication: Comparison) -> Effect:
    """Add the outcome of a finished replication to the comparison's results and report."""
    found = replication.results
    (effect,) = found.effects
    added = Replication(effect=effect, seeds=found.seeds)
    comparison.judged = comparison.results.model_copy(update={"replication": added})
    comparison.results.to_json(comparison.path / "results.json")
    show_report(comparison.results, comparison.path)
    return effect


def run_grid(
    cells: Sequence[tuple[str, Comparison]], show_progress: ProgressDisplay, path: Path, question: str
) -> list[GridRow]:
    """Run every unfinished cell and return a row per claim, also written to `grid.json` and `grid.html` in `path`.

    Each cell has its own verdict; cells are neither pooled nor extrapolated.
    """
    rows: list[GridRow] = []
    refuse_links(path)
    with explain_write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path)
    for words, comparison in cells:
        with show_progress(comparison) as on_progress:
            results = comparison.run(on_progress)
        name = comparison.path.name
        rows += [GridRow(words, claim.effect, name) for claim in results.claims if claim.role == "claim"]
        values = [row.to_dict() for row in rows]
        with explain_write_errors(path):
            write_json(
                path / "grid.json", {"question": question, "margin": comparison.plan.rules.margin, "rows": values}
            )
    page = path / "grid.html"

    def show() -> None:
        write_page(page, path.name, grid_page(question, rows, comparison.plan.rules))

    attempt(str(page), show, lambda reason: None)  # the verdicts are in grid.json
    return rows


def grid_page(question: str, rows: list[GridRow], rules: Rules) -> Page:
    columns = ["", "setting", "change", "seeds", "mean", "interval", "sign", "verdict"]
    effects = [row.effect for row in rows]
    names = [f"{number}. {row.cell} {row.effect.arm}: {row.cells()[-1]}" for number, row in enumerate(rows, start=1)]
    figure = PageFigure(
        "The difference in each setting",
        Drawing(
            draw_forest(effects, names, rules.margin, rules.lower_is_better, "g"),
            ["setting", "mean", "low", "high"],
            [[name, effect.mean, effect.low, effect.high] for name, effect in zip(names, effects, strict=True)],
        ),
        f"Rows as in the table; the band is the margin of ±{rules.margin:g}. Every row has its own verdict.",
    )
    cells = [[str(number), *row.cells()] for number, row in enumerate(rows, start=1)]
    return Page(question, "Nothing is extrapolated to settings that were not run.", columns, cells, [figure])
