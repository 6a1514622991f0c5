"""Report sections that support a verdict: protocol, matched budgets, tuning, replication, and activation statistics."""

from collections.abc import Iterator

from partwise.comparison.measures import TOLERANCE
from partwise.comparison.report.cells import confidence, decimal_places, number, with_interval
from partwise.comparison.results import Budget, ControlResult, Results, SiteStatistic, StepEffect
from partwise.comparison.stats.number_format import format_percent
from partwise.comparison.stats.verdict_text import details
from partwise.messages import quantity
from partwise.plots.blocks import Cell, Figure, Paragraph, Table, without_empty_columns
from partwise.plots.cells import NONE, capitalize_first
from partwise.plots.colors import ARM_COLORS

BUDGETS = {
    "tokens": "equal tokens",
    "parameters": "equal parameters",
    "flops": "equal FLOPs",
    "seconds": "equal seconds",
}
MIN_FACTOR = 1.2  # minimum ratio between the arms of a statistic that is listed


def detail_sentences(results: Results) -> list[str]:
    """The sentences that say more than the headlines of the claims, and the exploratory estimates."""
    claims = [claim for claim in results.claims if claim.role == "claim"]
    sentences = [*details([claim.effect for claim in claims])]
    return sentences + [claim.exploratory.sentence for claim in claims if claim.exploratory]


def verdict_details(results: Results) -> Iterator[Paragraph]:
    return map(Paragraph, detail_sentences(results))


def forest(results: Results) -> Iterator[Figure | Table]:
    """A forest plot, the differences over training, and a table of all comparisons, if there are several."""
    from partwise.comparison.report.figures import draw_all_over_time, draw_forest

    effects, protocol = results.effects, results.protocol
    if len(effects) < 2:
        return
    names = [f"{effect.arm} − {effect.against}" for effect in effects]
    labels = [f"{name}: {effect.verdict or 'no verdict'}" for name, effect in zip(names, effects, strict=True)]
    if svg := draw_forest(effects, labels, protocol.margin, protocol.lower_is_better, "f"):
        note = f"{capitalize_first(protocol.metric_with_unit)}. "
        note += "Diamonds are means, lines their intervals; the band is the margin."
        rows: list[list[Cell]] = [
            [name, effect.verdict, effect.mean, effect.low, effect.high]
            for name, effect in zip(names, effects, strict=True)
        ]
        yield Figure("Every difference", svg, note, columns=["difference", "verdict", "mean", "low", "high"], rows=rows)
    colors = [ARM_COLORS[1 + index % (len(ARM_COLORS) - 1)] for index in range(len(results.claims))]
    curves = [(color, claim.effect_over_training) for color, claim in zip(colors, results.claims, strict=True)]
    if svg := draw_all_over_time(curves, protocol.margin, "a"):
        note = "Mean difference at each evaluation, with its interval at that step. The verdict is for the last."
        rows = [
            [name, point.step, point.mean, point.low, point.high]
            for name, (_, points) in zip(names, curves, strict=True)
            for point in points
        ]
        legend = list(zip(colors, names, strict=True))
        yield Figure("Over training", svg, note, legend, ["difference", "step", "mean", "low", "high"], rows)
    kinds = {"negative": "negative control", "positive": "positive control"}
    table = []
    for claim in results.claims:
        effect = claim.effect
        cells = [f"{effect.arm} − {effect.against}", kinds.get(claim.role, "claim")]
        level = NONE if effect.low is None else confidence(effect)
        table.append([*cells, with_interval(effect, decimal_places(effect)), level, effect.verdict or "no verdict"])
    yield Table(["difference", "role", "mean (interval)", "confidence", "verdict"], table, left=2)


def sign_table(results: Results) -> Iterator[Table]:
    """The sign of the difference at 25, 50, 75 and 100% of training."""
    rows = []
    for claim in results.claims:
        points, effect = claim.effect_over_training, claim.effect
        last = max((point.step for point in points), default=0)
        if len(points) < 4:
            continue
        cells = []
        for fraction in (0.25, 0.5, 0.75, 1.0):
            nearest = min(points, key=lambda point: abs(point.step - fraction * last))
            cells.append(NONE if abs(nearest.step / last - fraction) > 0.07 else sign(nearest))
        rows.append([f"{effect.arm} − {effect.against}", *cells])
    if rows:
        note = "Sign of the mean difference; in parentheses if the interval at that step contains 0."
        head, rows = without_empty_columns(["sign of the difference", "25%", "50%", "75%", "100%"], rows, NONE)
        yield Table(head, rows, note=note)


def sign(point: StepEffect) -> str:
    if point.mean is None:
        return NONE
    mark = "+" if point.mean > 0 else "−" if point.mean < 0 else "0"
    excludes = point.low is not None and point.high is not None and (point.low > 0 or point.high < 0)
    return mark if excludes else f"({mark})"


def matched_budgets(results: Results) -> Iterator[Table | Paragraph]:
    """The four budgets that a comparison can hold equal, and which of them this one does."""
    budgets = {arm.name: arm.budget for arm in results.arms}
    rows = []
    for claim in results.claims:
        effect = claim.effect
        budget, baseline = budgets.get(effect.arm), budgets.get(effect.against)
        if claim.role == "claim" and budget and baseline:
            interval = with_interval(effect, decimal_places(effect))
            cells = [budget_cell(name, budget, baseline, interval) for name in BUDGETS]
            rows.append([f"{effect.arm} − {effect.against}", *cells])
    if rows:
        note = "The difference is listed under every budget that the arms share within 1%; elsewhere, how much more or less "
        how = (
            "measured in turn, a step of one arm at a time"
            if results.timed_on or (results.match and results.match.measure == "seconds")
            else "of the runs themselves, which trained in parallel"
        )
        note += "the arm uses. --match holds one budget equal. FLOPs are those of matmuls, in the model and in Muon's "
        note += f"updates. Seconds are computed from the throughput {how}."
        yield Table(["difference", *BUDGETS.values()], rows, note=note)
    for match in results.match.arms if results.match else ():
        assert results.match is not None
        yield Paragraph(
            f"Matched by {results.match.measure}: {match.key} of {match.arm} changed from {match.old:,} to {match.new:,}; "
            f"the remaining difference is {match.residual:+.2%}."
        )


def budget_cell(name: str, budget: Budget, baseline: Budget, interval: str) -> str:
    own, base = getattr(budget, name), getattr(baseline, name)
    if own is None or not base:
        return NONE
    excess = own / base - 1
    return interval if abs(excess) <= TOLERANCE else f"not equal ({excess:+.1%})"


def tuning(results: Results) -> Iterator[Figure | Table | Paragraph]:
    from partwise.comparison.report.figures import draw_tuning

    tuned = results.tuning
    if not tuned:
        return
    metric, where, lower_is_better = "loss", " on the held-out text", True
    if not tuned.held_out:
        metric, where, lower_is_better = results.protocol.metric, "", results.protocol.lower_is_better
    ticks = [as_number(value) for value in tuned.values]
    numeric = None not in ticks
    x = [float(tick) for tick in ticks if tick is not None] if numeric else [float(i) for i in range(1, len(ticks) + 1)]
    colors = [ARM_COLORS[index % len(ARM_COLORS)] for index in range(len(tuned.arms))]
    lines = [(color, list(zip(x, row.means, strict=True))) for color, row in zip(colors, tuned.arms, strict=True)]
    if svg := draw_tuning(lines, numeric, "u", metric, lower_is_better):
        legend = [(color, row.arm) for color, row in zip(colors, tuned.arms, strict=True)]
        note = f"Mean {metric}{where}; a star marks the best value."
        numbers = [
            [row.arm, value, loss] for row in tuned.arms for value, loss in zip(tuned.values, row.means, strict=True)
        ]
        yield Figure(tuned.key, svg, note, legend, ["arm", "value", metric], numbers)
    rows = []
    for row in tuned.arms:
        bracketed = "bracketed" if row.interior else "not bracketed: try further values"
        means = [NONE if mean is None else number(mean) for mean in row.means]
        rows.append([row.arm, *means, row.best, bracketed])
    yield Table(["arm", *tuned.values, "best", "best value is"], rows, title=f"{tuned.key}: {metric}{where}")
    data, test = " and on the last tenth of the training text", "Only the test used the validation split."
    if not tuned.held_out:
        data, test = "", "The values were chosen by the metric of the verdict, and perhaps on the same data."
    yield Paragraph(
        f"Tuned on {quantity(len(tuned.seeds), 'seed')} that the test does not use{data}: {tuned.runs} runs, "
        f"{tuned.seconds / 60:.1f} minutes. {test}"
    )


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def replication(results: Results) -> Iterator[Paragraph]:
    if found := results.replication:
        yield Paragraph(f"The winner on fresh seeds {min(found.seeds)} to {max(found.seeds)}: {found.effect.sentence}")


def activation_table(results: Results, most: int = 14) -> Iterator[Table]:
    """The sites where activations or gradients differ most between the arms, for one run of each."""
    arms, sites = [arm.name for arm in results.arms], results.activation_statistics

    def ratio(row: SiteStatistic) -> float:
        nonzero = [value for value in row.values if value]
        return max(nonzero) / min(nonzero) if len(nonzero) > 1 else 1.0

    shown = sorted((row for row in sites if ratio(row) >= MIN_FACTOR), key=ratio, reverse=True)[:most]
    rows = []
    for row in shown:
        values = [NONE if value is None else f"{value:.3g}" for value in row.values]
        rows.append([row.site, row.quantity, *values, f"{ratio(row):.2f}"])
    if rows:
        note = f"The {len(rows)} of {len(sites)} statistics that differ most, by a factor of at least {MIN_FACTOR:g}, in the "
        note += "trained models of the first seed, over the same validation text. A dash: the arm has no such site."
        yield Table(["site", "quantity", *arms, "factor"], rows, note=note, left=2)


def claim(results: Results) -> Iterator[Table]:
    """The published claim under test, and the answer."""
    study = results.study
    if study:
        rows = [["claim", study.claim], ["source", study.source], ["published result", study.published]]
        rows += [["changed here", study.changed]] if study.changed else []
        rows += [[f"{answer.difference}: expected {answer.prediction}", answer.outcome] for answer in study.answers]
        yield Table(["", ""], [row for row in rows if row[1]], left=2, kind="facts")


def control_outcome(control: ControlResult) -> str:
    if control.passed is None:
        return "no verdict, because a run failed"
    if control.role == "positive":
        power_text = f"{100 * control.power:.0f}% power" if control.power else "power not calibrated"
        return f"positive control {'passed' if control.passed else 'failed'} ({power_text})"
    return "negative control passed, no difference" if control.passed else "negative control failed, a false difference"


def control_sentence(results: Results) -> str:
    """The outcome of the controls in one sentence; '' without any."""
    outcomes = [f"{control.arm}: {control_outcome(control)}" for control in results.controls]
    failed = [control.role for control in results.controls if control.passed is False]
    advice = "; note that a negative control fails one time in twenty by chance" if "negative" in failed else ""
    advice = "; do not trust these verdicts" if "positive" in failed else advice
    return f"Controls: {'; '.join(outcomes)}{advice}." if outcomes else ""


def failure_rule(results: Results) -> str:
    limit, lower = results.protocol.failure, results.protocol.lower_is_better
    beyond = "" if limit is None else f" or {'above' if lower else 'below'} {limit:.4g}"
    return f"A run fails if its value is not finite{beyond}."


def protocol(results: Results) -> Iterator[Table | Paragraph]:
    rules = results.protocol
    if not rules.looks:
        yield Paragraph(
            "No looks were planned (a look is an interim analysis at a given number of seeds), so the first verdict stands, "
            "and estimates from seeds that are added later are exploratory. --protocol fixes the looks and the stopping rule "
            f"before the first run. {failure_rule(results)}"
        )
        return
    rows = [
        ["question", results.question],
        ["metric and margin", f"{rules.metric_with_unit}, ±{rules.margin:g}"],
        [
            "looks",
            f"at {', '.join(map(str, rules.looks))} seeds, {format_percent(rules.alpha)} error in total",
        ],
        ["stopping rule", "a claim closes as better, worse or equivalent, or at the last look"],
        ["failure", failure_rule(results)],
        ["claims", str(len([claim for claim in results.claims if claim.role == "claim"]))],
    ]
    rows += [[f"control {control.arm}", control_outcome(control)] for control in results.controls]
    if results.provenance.protocol_hash:
        rows.append(["hash of the protocol, before the first run", results.provenance.protocol_hash])
    yield Table(["", ""], rows, left=2, kind="facts")
