"""Render a comparison's report: an offline HTML page, the same as Markdown, and the terminal summary."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.comparison.report.accuracy import ACCURACIES
from partwise.comparison.report.backends import missing_kernels
from partwise.comparison.report.cells import confidence, decimal_places, number, seed_counts
from partwise.comparison.report.evidence import control_sentence, detail_sentences
from partwise.comparison.report.explanations import write_p
from partwise.comparison.report.horizon_section import saved_sentences
from partwise.comparison.report.ledger_sentences import ledger_sentences
from partwise.comparison.report.own_parts import leak_sentence
from partwise.comparison.report.reversals import reversals
from partwise.comparison.report.sections import DETAILS, sections
from partwise.comparison.report.tables import REFERENCES_NOTE, loss_references, reference_sentence
from partwise.comparison.results import Results
from partwise.comparison.stats.verdict_text import explanations, headline
from partwise.messages import attempt, not_shown
from partwise.plots.blocks import Section, without_empty_columns
from partwise.plots.cells import NONE, count, percent
from partwise.plots.layout import render_page, template_environment, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from partwise.plots.text_table import TextTable

MARKS = {"better": "✓", "worse": "✕", "equivalent": "≈", "undecided": "?", "none": "–"}
TERMINAL_COLORS = {
    "better": "green",
    "worse": "red",
    "equivalent": "blue",
    "undecided": "yellow",
    "none": "bright_black",
}


def write_report(results: Results, folder: Path) -> list[Section]:
    """Write `report.html` and `report.md` into `folder`, each atomically; their sections. Unknown values are omitted."""
    page = _page(results)
    for name, render in RENDERERS.items():
        write_text(folder / name, render(page))
    return page["sections"]


def show_report(results: Results, folder: Path) -> None:
    """As `write_report`, for results that stand: a page that cannot be written is a warning on standard error."""

    def show(name: str, page: dict[str, Any]) -> None:
        write_text(folder / name, RENDERERS[name](page))

    if page := attempt("the report", partial(_page, results), lambda reason: None):
        for name in RENDERERS:
            attempt(str(folder / name), partial(show, name, page), lambda reason: None)


def summary(results: Results, folder: Path | None = None) -> "RenderableType":
    """The terminal summary: verdicts in two lines, tables, then details and, if `folder` is given, the report's path."""
    from rich.console import Group

    results = printable_results(results)
    parts: list[RenderableType] = []
    for make in SUMMARY:
        what = make.__name__.strip("_").replace("_", " ")
        parts += attempt(
            f"the {what} of the summary", partial(make, results), lambda reason: [_line(not_shown(reason))]
        )
    if folder is not None:
        parts.append(_line(f"report: {folder / 'report.html'}"))
    return Group(*parts)


def printable(value: Any) -> Any:
    """The same plain values with control characters in every string replaced."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else c if c == "\n" else " " if c.isspace() else "\ufffd" for c in value)
    if isinstance(value, Mapping):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value


def printable_results(results: Results) -> Results:
    return Results.from_dict(printable(results.to_dict()))


def _page(results: Results) -> dict[str, Any]:
    """The variables of the templates."""
    results = printable_results(results)
    return {
        "title": results.question,
        "leak": leak_sentence(results),
        "results": results,
        "verdicts": _verdicts(results),
        "reference": attempt("the references", partial(reference_sentence, results), not_shown),
        "controls": attempt("the controls", partial(control_sentence, results), not_shown),
        "sections": sections(results),
    }


def _verdicts(results: Results) -> list[dict[str, Any]]:
    """The headline of each claim; its full sentence is among the details."""
    verdicts = []
    for claim in results.claims:
        if claim.role == "claim":
            verdict = claim.effect.verdict or "none"
            verdicts.append({"verdict": verdict, "mark": MARKS[verdict], "lines": headline(claim.effect)})
    return verdicts


def _render_html(page: dict[str, Any]) -> str:
    return render_page("comparison/report/report.html.jinja", page)


def _render_markdown(page: dict[str, Any]) -> str:
    from markupsafe import Markup

    environment = template_environment(_markdown)
    environment.filters["verbatim"] = lambda text: Markup(_fenced(text))
    return environment.get_template("comparison/report/report.md.jinja").render(page)


def _markdown(value: Any) -> Any:
    """Escape text so that Markdown shows it literally on one line; Markup passes unchanged."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    value = " ".join(value.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    value = re.sub(r"([\\`*|\[\]~$#])", r"\\\1", value)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", value)


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks within."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text}\n{fence}"


RENDERERS: dict[str, Callable[[dict[str, Any]], str]] = {"report.html": _render_html, "report.md": _render_markdown}


def _line(text: str, style: str = "") -> "RenderableType":
    from partwise.console import Prose

    return Prose(" ".join(text.split()), style=style, no_wrap=False, overflow="fold")


def _table(head: list[str], rows: list[list[str]]) -> "TextTable":
    from partwise.plots.text_table import TextTable

    return TextTable(head, [[" ".join(cell.split()) for cell in row] for row in rows])


def _question(results: Results) -> "list[RenderableType]":
    leak = leak_sentence(results)
    return [*([_line(leak, "bold red")] if leak else []), _line(results.question, "bold"), _line("")]


def _arms(results: Results) -> "list[RenderableType]":
    rows = []
    counts = seed_counts(results)  # arms of closed claims are not trained further; seeds may be added after the verdict
    for index, arm in enumerate(results.arms):
        memory, failed = arm.peak_memory, len(arm.failed)
        row = [arm.name, count(arm.parameters), count(arm.trainable_parameters), count(arm.tokens_per_second)]
        row += [NONE if memory is None else f"{memory / 2**20:,.0f} MiB"]
        row += [f"{failed} failed" if failed else number(arm.mean), number(arm.sd)]
        if counts:
            row.insert(1, counts[index])
        rows.append(row)
    seeds = ["n"] if counts else []
    head = ["arm", *seeds, "parameters", "trainable", "tokens/s", "memory", results.protocol.metric, "seed SD"]
    return [_line(""), _table(*without_empty_columns(head, rows, NONE))] if rows else []


def _differences(results: Results) -> "list[RenderableType]":
    if not results.claims:
        return []
    rows, first = [], results.effects[0]
    for claim in results.claims:
        effect, digits, interval = claim.effect, decimal_places(claim.effect), NONE
        if effect.low is not None and effect.high is not None:
            interval = f"{number(effect.low, digits)} to {number(effect.high, digits)} ({confidence(effect)})"
        against = "" if effect.against == first.against else f" minus {effect.against}"
        control = {"negative": " (negative control)", "positive": " (positive control)"}.get(claim.role, "")
        cells = [effect.arm + against + control, str(effect.n), number(effect.mean, digits), interval]
        rows.append([*cells, write_p(effect.p_adjusted, effect.total_alpha), effect.verdict or "no verdict"])
    several = len(rows) > 1 or bool(first.looks)
    head = [f"minus {first.against}", "n", "mean", "interval", "p adjusted" if several else "p", "verdict"]
    return [_line(""), _table(head, rows)]


def _headlines(results: Results) -> "list[RenderableType]":
    """Each verdict in two lines; intervals of other kinds, failure rates and full sentences are among the details."""
    from rich.padding import Padding

    lines: list[RenderableType] = []
    for claim in results.claims:
        if claim.role == "claim":
            verdict = claim.effect.verdict or "none"
            first, *rest = headline(claim.effect)
            lines.append(_line(f"{MARKS[verdict]} {first}", f"bold {TERMINAL_COLORS[verdict]}"))
            lines += [Padding(_line(line), (0, 0, 0, 2), expand=False) for line in rest]
    return lines


def _details(results: Results) -> "list[RenderableType]":
    return [_line(""), _line(DETAILS, "bold"), *map(_line, detail_sentences(results))]


def _further_sentences(results: Results) -> "list[RenderableType]":
    sentences = [control_sentence(results), *saved_sentences(results), *reversals(results)]
    return [_line(sentence) for sentence in sentences if sentence]


def _small_print(results: Results) -> "list[RenderableType]":
    lines = []
    references = [f"{name} {number(value)}" for name, value, _ in loss_references(results)]
    if references:
        lines.append(f"references: {', '.join(references)}. {REFERENCES_NOTE}")
    lines += _accuracies(results)
    note = f"margin ±{results.protocol.margin:g}" + (f", {results.tuning_note}" if results.tuning_note else "")
    lines += [*explanations(results.effects), *ledger_sentences(results)]
    lines += [f"{results.protocol.metric_with_unit}; {note}", *missing_kernels(results), results.scope]
    return [_line(text, "dim") for text in lines]


SUMMARY = (_question, _headlines, _further_sentences, _differences, _arms, _details, _small_print)
"""The functions that make the parts of the terminal summary."""


def _accuracies(results: Results) -> list[str]:
    """One line per accuracy: each arm's value and the constant reference."""
    references, lines = results.references.to_dict(), []
    scored = [(arm.name, arm.accuracy["all"]) for arm in results.arms if arm.accuracy and "all" in arm.accuracy]
    for measure, reference in (
        ("char_accuracy_closed", "constant_char_accuracy_closed"),
        ("exact_match", "constant_exact_match"),
    ):
        scores = [f"{name} {percent(getattr(accuracy, measure).proportion)}" for name, accuracy in scored]
        known = f" (reference {percent(references[reference])})" if references[reference] is not None else ""
        if scores:
            lines.append(f"{ACCURACIES[measure]}: {', '.join(scores)}{known}")
    return lines
