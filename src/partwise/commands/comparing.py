"""`compare` and `study`."""

import json
from pathlib import Path
from typing import Any

from partwise.comparison.claims import markdown, overall
from partwise.comparison.experiment import Comparison, planned
from partwise.comparison.power import looks_for, smallest_over_looks
from partwise.comparison.report import summary
from partwise.comparison.request import Request
from partwise.comparison.sequels import add_confirmation, cell_row, confirming, grid_of, run_grid
from partwise.comparison.store import expected_noise
from partwise.comparison.study import all_studies, find_study
from partwise.config import ConfigError
from partwise.terminal import Watch, clock, console, table

PROTOCOL_SEEDS = 16


def compare_variants(
    given: dict[str, Any],
    *,
    protocol: bool,
    grid: list[str],
    confirm: bool,
    name: str | None,
    dry_run: bool,
    sd: float | None,
    workers: int | None,
    together: int | None,
    imports: tuple[str, ...],
) -> None:
    """Run a comparison under a live table and print its summary; or say what it would take."""
    request = request_of(given, protocol)
    if grid:
        crew = {"workers": workers, "together": together}
        compare_over_grid(request, grid, name, dry_run=dry_run, sd=sd, imports=imports, **crew)
        return
    comparison = planned(request, name, imports, workers, together)
    if dry_run:
        show_estimate(comparison, sd)
        return
    run_comparison(comparison)
    if confirm:
        confirm_winner(comparison)


def confirm_winner(comparison: Comparison) -> None:
    """The winner again, on seeds by which nothing was chosen."""
    again = confirming(comparison)
    if again is None:
        console.print("nothing to confirm: no arm was better")
        return
    console.print("\nconfirming on fresh seeds", style="bold")
    run_comparison(again)
    row = add_confirmation(comparison, again)
    held = "confirmed" if row["verdict"] == "better" else f"not confirmed ({row['verdict'] or 'no verdict'})"
    console.print(f"{row['arm']}: {held} on seeds that chose nothing; added to {comparison.report}", markup=False)


def compare_over_grid(
    request: Request, grid: list[str], name: str | None, *, dry_run: bool, sd: float | None, **settings: Any
) -> None:
    """The same question in every setting of the grid, each with its own verdict."""
    cells = list(grid_of(request, grid, name, **settings))
    if dry_run:
        for _, comparison in cells:
            show_estimate(comparison, sd)
        return
    path = Path("runs") / (name or request.name())
    question = f"{cells[0][1].plan.question} ({', '.join(grid)})"
    try:
        rows = run_grid(cells, watching, path, question)
    except KeyboardInterrupt:
        console.print("stopped; every run is saved, and the same command continues")
        raise
    columns = ["setting", "change", "seeds", "mean", "interval", "sign", "verdict"]
    console.print(table(question, columns, [cell_row(row) for row in rows]))
    console.print(f"nothing is extrapolated to other settings; figure: {path / 'grid.html'}", markup=False)


def watching(comparison: Comparison) -> Watch:
    announce(comparison)
    return Watch()


def request_of(given: dict[str, Any], protocol: bool) -> Request:
    """What the options of the command ask for. Raises ConfigError."""
    values = {key: value for key, value in given.items() if value is not None}
    if "looks" in values:
        if "seeds" in values:
            raise ConfigError(
                f"--seeds {values['seeds']} --looks {values['looks']}: give one; the last look is the seeds"
            )
        try:
            values["looks"] = [int(word) for word in values["looks"].split(",")]
        except ValueError:
            raise ConfigError(f"--looks {values['looks']}: give numbers of seeds, such as 4,8,16") from None
    elif protocol:
        values["looks"] = list(looks_for(values.get("seeds", PROTOCOL_SEEDS)))
    return Request.from_dict(values)


def run_comparison(comparison: Comparison) -> dict[str, Any]:
    """Train, judge and print."""
    announce(comparison)
    try:
        with Watch() as watch:
            results = comparison.run(watch)
    except KeyboardInterrupt:
        console.print(f"stopped; every run is saved. To continue:\n  {comparison.command}", markup=False)
        raise
    console.print(summary(results))
    console.print(f"report: {comparison.report}", markup=False)
    return results


def announce(comparison: Comparison) -> None:
    plan = comparison.plan
    steps = plan.arms[0].config.train.steps
    console.print(plan.question, style="bold", markup=False)
    seeds = f"{plan.seeds} paired seeds"
    if len(plan.looks) > 1:
        seeds = f"up to {seeds}, judged at {', '.join(map(str, plan.looks))}"
    console.print(f"{len(plan.arms)} arms x {seeds}, {steps:,} steps each, in {comparison.path}", markup=False)
    if plan.common:
        console.print(f"for every arm: {' '.join(plan.common)}", markup=False)


def show_estimate(comparison: Comparison, sd: float | None) -> None:
    plan = comparison.plan
    announce(comparison)
    estimate = comparison.estimate()
    most = "at most " if len(plan.looks) > 1 else ""
    console.print(
        f"{most}about {clock(estimate['minutes'] * 60)} for {estimate['runs']} runs, {estimate['workers']} at a time, as "
        "measured just now"
        + (f", not counting that {estimate['together']} seeds are one program" if estimate["together"] > 1 else "")
    )
    noise = expected_noise(plan, comparison.prepare(), sd)
    if plan.seeds < 2:
        console.print("it could show no effect: one seed has no interval; use --seeds 3 or more")
        return
    effect = smallest_over_looks(noise.sd, plan.looks, noise.correlation, plan.rules.alpha)
    console.print(
        f"the smallest effect that {plan.seeds} seeds show with 80 % power is {effect:.4f} {plan.rules.unit}, "
        f"given {noise.source}"
    )


def run_study(name: str, dry_run: bool) -> None:
    """Run every comparison of a study, or say how long that takes."""
    study = find_study(name)
    if dry_run:
        for _, comparison in study.plan():
            show_estimate(comparison, None)
        return

    try:
        path = study.run(watching)
    except KeyboardInterrupt:
        console.print(f"stopped; every run is saved. To continue:\n  partwise study run {name}")
        raise
    for results in json.loads(path.read_text())["comparisons"].values():
        console.print(summary(results))
    console.print(f"results: {path}")


def list_studies() -> None:
    rows = []
    for study in all_studies():
        rows.append((study.name, " ".join(study.claim.split()), str(len(study.entries)), overall(study)))
    console.print(table("studies", ["study", "claim", "comparisons", "found"], rows))
    console.print("partwise study run NAME runs one; partwise study table shows every figure")


def show_claims(out: Path | None) -> None:
    text = markdown(all_studies())
    if out is None:
        console.print(text, markup=False)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    console.print(f"written: {out}", markup=False)
