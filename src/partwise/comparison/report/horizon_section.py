"""Runs that end at several numbers of steps: the difference at each, and the compute saved at equal loss."""

from collections.abc import Iterator

from partwise.comparison.report.cells import ADJUSTED, decimal_places, with_interval
from partwise.comparison.results import ClaimResult, ComputeSaved, Ratio, Results
from partwise.comparison.stats.effect import Effect
from partwise.plots.blocks import Cell, Figure, Paragraph, Table
from partwise.plots.cells import NONE, capitalize_first
from partwise.plots.colors import ARM_COLORS

MEASURES = {"steps": "steps", "tokens": "tokens", "flops": "FLOPs", "seconds": "seconds"}


def horizons(results: Results) -> Iterator[Figure | Table]:
    """The difference of every claim at each number of steps."""
    from partwise.comparison.report.figures import draw_over_horizons

    claims = [claim for claim in results.claims if claim.effect_over_horizons]
    if not claims:
        return
    colors = [ARM_COLORS[1 + index % (len(ARM_COLORS) - 1)] for index in range(len(claims))]
    names = [f"{claim.effect.arm} − {claim.effect.against}" for claim in claims]
    lines = [(color, claim.effect_over_horizons) for color, claim in zip(colors, claims, strict=True)]
    if svg := draw_over_horizons(lines, results.protocol.margin, "h"):
        note = (
            f"{capitalize_first(results.protocol.metric_with_unit)}: mean difference of runs that end there, with its "
        )
        note += "interval. Every point is the end of a training of its own; the verdict is for the last."
        rows: list[list[Cell]] = [
            [name, point.step, point.mean, point.low, point.high]
            for name, claim in zip(names, claims, strict=True)
            for point in claim.effect_over_horizons
        ]
        legend = list(zip(colors, names, strict=True))
        yield Figure(
            "Difference against the number of steps",
            svg,
            note,
            legend,
            ["difference", "steps", "mean", "low", "high"],
            rows,
        )
    steps = sorted({point.step for claim in claims for point in claim.effect_over_horizons})
    table = []
    for name, claim in zip(names, claims, strict=True):
        digits, points = decimal_places(claim.effect), {point.step: point for point in claim.effect_over_horizons}
        cells = [with_interval(points[each], digits) if each in points else NONE for each in steps]
        change = claim.change_over_horizons
        table.append([name, *cells, with_interval(change, digits) if change else NONE])
    note = "The change is that from the shortest runs to the longest, by seed: an interval without 0 shows that the "
    note += "difference depends on the number of steps."
    note += f" {ADJUSTED}" if any(claim.effect.n_comparisons > 1 for claim in claims) else ""
    yield Table(["difference at the end of", *(f"{each:,} steps" for each in steps), "change"], table, note=note)


def compute_saved(results: Results) -> Iterator[Table | Paragraph]:
    """How many times less an arm needs for the same loss, by steps, tokens, FLOPs and seconds."""
    claims = [claim for claim in results.claims if claim.role == "claim" and claim.effect.verdict]
    if not claims or not results.metric_is_loss:
        return
    if not any(claim.compute_saved for claim in claims):
        yield Paragraph(
            "Not computed: it needs runs that end at several numbers of steps (--horizons 500,2000,8000), because a loss "
            "during a run says nothing of a run that ends there."
        )
        return
    rows = []
    for claim in claims:
        name, saved = f"{claim.effect.arm} − {claim.effect.against}", claim.compute_saved
        if saved is None or not saved.ratios:
            reason = why_not_computed(saved, claim.effect, results)
            rows.append([name, *[NONE] * len(MEASURES), f"not computed: {reason}"])
            continue
        cells = [factor_cell(saved.ratios[key]) if key in saved.ratios else NONE for key in MEASURES]
        censored = saved.censored_pairs
        pairs = f"{saved.pairs} pairs" + (f", {censored} with a lead beyond the shortest run" if censored else "")
        rows.append([name, *cells, pairs])
    note = "The baseline's use over the arm's, at the higher of their two final losses: 1.25 means that the arm reaches that "
    note += "loss with 1.25 times less. Geometric mean over pairs of seeds with its interval, interpolated between the ends "
    note += "of runs by a power law through three of them; with runs of two lengths, the interval is unknown. "
    note += "A lead that began before the shortest run ended is stated as a bound."
    if any(claim.effect.n_comparisons > 1 for claim in claims):
        note += " The intervals are adjusted for all differences by Bonferroni's method."
    yield Table(["difference", *MEASURES.values(), ""], rows, note=note)


def why_not_computed(saved: ComputeSaved | None, effect: Effect, results: Results) -> str:
    """Why the compute that a claim saves is not known."""
    if saved:
        return saved.reason
    return "a sum of effects has no runs" if results.arm(effect.against) is None else "all runs have one length"


def factor_cell(ratio: Ratio) -> str:
    """`1.25 (1.10 to 1.42)`, one end of it, or the ratio alone if its interval is unknown."""
    if ratio.ratio is None:
        return f"more than {factor(ratio.low)}" if ratio.low is not None else f"less than {factor(ratio.high or 0)}"
    if ratio.low is None or ratio.high is None:
        return factor(ratio.ratio)
    return f"{factor(ratio.ratio)} ({factor(ratio.low)} to {factor(ratio.high)})"


def factor(value: float) -> str:
    """`1.25`; with more decimals if it would read as 1 and is not, as 1 decides whether anything is saved."""
    decimals = next((n for n in range(2, 6) if float(f"{value:.{n}f}") != 1), 2)
    return f"{value:.{decimals}f}"


def saved_sentences(results: Results) -> Iterator[str]:
    """One sentence for every arm that is better or worse, with what that means in steps and FLOPs."""
    for claim in results.claims:
        if claim.role == "claim" and claim.effect.verdict in ("better", "worse") and claim.compute_saved:
            yield saved_sentence(claim)


def saved_sentence(claim: ClaimResult) -> str:
    saved, effect = claim.compute_saved, claim.effect
    assert saved is not None
    if not saved.ratios:
        return f"Compute saved by {effect.arm}: not computed, because {saved.reason}."
    steps, flops = saved.ratios["steps"], saved.ratios.get("flops")
    what, more = (
        ("steps and FLOPs", "") if flops == steps else ("steps", f", and {in_words(flops, 'FLOPs')}" if flops else "")
    )
    joined = "than" if saves(steps) else "as"
    return f"At equal loss, {effect.arm} needs {in_words(steps, what)} {joined} {effect.against}{more}."


def in_words(ratio: Ratio, what: str) -> str:
    """`1.25 times (1.10 to 1.42) fewer steps`, or `1.25 times (1.10 to 1.42) as many steps`; without an unknown interval."""
    low, high, center = ratio.low, ratio.high, ratio.ratio
    unit = f"fewer {what}" if saves(ratio) else f"as many {what}"
    if center is None:
        bound = low if low is not None else 1 / (high or 1)
        return f"more than {factor(bound)} times {unit}"
    if low is None or high is None:
        return f"{factor(center if saves(ratio) else 1 / center)} times {unit}"
    if not saves(ratio):
        center, low, high = 1 / center, 1 / high, 1 / low
    return f"{factor(center)} times ({factor(low)} to {factor(high)}) {unit}"


def saves(ratio: Ratio) -> bool:
    """Whether the arm needs less than the baseline."""
    return ratio.low is not None if ratio.ratio is None else ratio.ratio >= 1
