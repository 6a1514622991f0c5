"""A comparison's report: one HTML page that opens offline, the same as Markdown, and the summary for the terminal."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partwise.comparison.report.cells import NONE, confidence, count, mean, measured, number, places, sd, share
from partwise.comparison.report.evidence import control_sentence
from partwise.comparison.report.explanations import write_p
from partwise.comparison.report.sections import FLOORS_SAY, MEASURES, floor_sentence, loss_floors, sections

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MARKS = {"better": "✓", "worse": "✕", "equivalent": "≈", "undecided": "?", "none": "–"}
TERMINAL_COLOURS = {
    "better": "green",
    "worse": "red",
    "equivalent": "blue",
    "undecided": "yellow",
    "none": "bright_black",
}


def write_report(results: dict[str, Any], folder: Path) -> None:
    """Write `report.html` and `report.md` into `folder`, each whole or not at all.

    `results` is what `results.json` holds; any number in it may be None, and what is absent is left out.
    """
    page = _page(results)
    for name in ("report.html", "report.md"):
        temporary = folder / f".{name}.tmp"
        temporary.write_bytes(_render(f"{name}.jinja", page).encode())
        os.replace(temporary, folder / name)


def summary(results: dict[str, Any], folder: Path | None = None) -> "RenderableType":
    """What `partwise compare` prints: tables, verdicts, floors, scope and, given its folder, where the report lies."""
    from rich.console import Group

    results = printable(results)
    parts: list[RenderableType] = [_line(results.get("question") or "", "bold"), _line("")]
    if results.get("arms"):
        parts += [_arms(results), _line("")]
    if results.get("comparisons"):
        parts += [_differences(results), _line("")]
    for verdict in _verdicts(results):
        parts.append(_line(f"{verdict['mark']} {verdict['sentence']}", f"bold {TERMINAL_COLOURS[verdict['tone']]}"))
    if said := control_sentence(results):
        parts.append(_line(said))
    parts.append(_line(""))
    parts += [_line(text, "dim") for text in _small_print(results)]
    if folder is not None:
        parts.append(_line(f"report: {folder / 'report.html'}"))
    return Group(*parts)


def printable(value: Any) -> Any:
    """The same plain values, with what would steer a terminal, a page or a file's encoding replaced in every text."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else c if c == "\n" else " " if c.isspace() else "\ufffd" for c in value)
    if isinstance(value, Mapping):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value


def _page(results: dict[str, Any]) -> dict[str, Any]:
    """What the templates show."""
    from partwise.comparison.report.figures import TONES

    results = printable(results)
    return {
        "results": results,
        "verdicts": _verdicts(results),
        "floor": floor_sentence(results),
        "controls": control_sentence(results),
        "sections": sections(results),
        "tones": TONES,
    }


def _verdicts(results: dict[str, Any]) -> list[dict[str, str]]:
    found = []
    for row in results.get("comparisons") or []:
        if row.get("role", "claim") != "claim":
            continue
        tone = row.get("verdict") or "none"
        sentence = row.get("sentence") or f"{row.get('verdict') or 'no verdict'}: {row['arm']} minus {row['against']}"
        found.append({"tone": tone, "mark": MARKS[tone], "sentence": sentence})
    return found


def _render(name: str, page: dict[str, Any]) -> str:
    from jinja2 import ChainableUndefined, Environment, PackageLoader
    from markupsafe import Markup

    html = name == "report.html.jinja"
    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=html,
        finalize=None if html else _markdown,
        undefined=ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["verbatim"] = lambda text: Markup(_fenced(text))
    return environment.get_template(name).render(page)


def _markdown(value: Any) -> Any:
    """Text that Markdown shows as it is, on one line, whatever it holds; Markup passes."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    value = " ".join(value.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    value = re.sub(r"([\\`*|\[\]~$#])", r"\\\1", value)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", value)


def _fenced(text: str) -> str:
    """A code block whose fence is longer than any run of backticks within."""
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}\n{text}\n{fence}"


def _line(text: str, style: str = "") -> "RenderableType":
    from rich.text import Text

    return Text(" ".join(text.split()), style=style, no_wrap=False, overflow="fold")


def _table(head: list[str], rows: list[list[str]]) -> "Table":
    """Names fold, numbers do not: it fits 80 columns whatever the arms are called."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for index, title in enumerate(head):
        name = index == 0
        table.add_column(
            _line(title), justify="left" if name else "right", overflow="fold", no_wrap=not name, min_width=8 * name
        )
    for row in rows:
        table.add_row(*(_line(cell) for cell in row))
    return table


def _arms(results: dict[str, Any]) -> "Table":
    rows = []
    numbers = {len(arm.get("values") or []) for arm in results["arms"]}
    for arm in results["arms"]:
        memory, diverged = arm.get("peak_memory"), len(arm.get("diverged") or [])
        rate = arm.get("tokens_per_second")
        row = [arm["name"], count(arm.get("parameters")), count(rate)]
        row += [NONE if memory is None else f"{memory / 2**20:,.0f} MiB"]
        row += [f"{diverged} diverged" if diverged else number(mean(arm)), number(sd(arm))]
        if len(numbers) > 1:  # arms of closed claims are not trained further: their means are over fewer seeds
            row.insert(1, str(len(arm.get("values") or [])))
        rows.append(row)
    seeds = ["n"] if len(numbers) > 1 else []
    return _table(
        ["arm", *seeds, "parameters", "tokens/s", "memory", str(results.get("metric") or "mean"), "seed SD"], rows
    )


def _differences(results: dict[str, Any]) -> "Table":
    rows, first = [], results["comparisons"][0]
    for row in results["comparisons"]:
        digits = places(row, results)
        interval = NONE
        if row.get("low") is not None and row.get("high") is not None:
            interval = f"{number(row['low'], digits)} to {number(row['high'], digits)}"
        cells = [row["arm"], str(NONE if row.get("n") is None else row["n"]), number(row.get("mean"), digits), interval]
        p = row.get("p") if row.get("p_adjusted") is None else row["p_adjusted"]
        against = "" if row.get("against") == first["against"] else f" minus {row.get('against')}"
        control = {"null": " (control: nothing)", "planted": " (control: planted)"}.get(row.get("role") or "", "")
        alpha = row.get("total_alpha") if row.get("looks") else row.get("alpha")
        cells[0] += against + control
        rows.append([*cells, write_p(p, alpha), row.get("verdict") or "no verdict"])
    several = len(rows) > 1 or bool(first.get("looks"))
    head = [f"minus {first['against']}", "n", "mean", f"{confidence(first)} interval".strip(), "p", "verdict"]
    head[4] = "p, adjusted" if several else "p"
    return _table(head, rows)


def _small_print(results: dict[str, Any]) -> list[str]:
    lines = []
    floors = [f"{name} {number(value)}" for name, value, _ in loss_floors(results)]
    if floors:
        lines.append(f"floors: {', '.join(floors)}. {FLOORS_SAY}")
    lines += _accuracies(results)
    if results.get("margin") is not None:
        given = f"margin ±{results['margin']:g}" + (f", {results['tuning']}" if results.get("tuning") else "")
        lines.append(f"{measured(results)}; {given}")
    return [*lines, results.get("scope") or ""]


def _accuracies(results: dict[str, Any]) -> list[str]:
    """A line per measure, each arm's share beside the floor."""
    floors, lines = results.get("floors") or {}, []
    arms = [arm for arm in results.get("arms") or [] if (arm.get("accuracy") or {}).get("all")]
    for measure, floor in (("characters_closed", "most_frequent_closed"), ("exact", "constant_answer")):
        scores = [f"{arm['name']} {share((arm['accuracy']['all'].get(measure) or {}).get('share'))}" for arm in arms]
        known = f" (floor {share(floors[floor])})" if floors.get(floor) is not None else ""
        if scores:
            lines.append(f"{MEASURES[measure]}: {', '.join(scores)}{known}")
    return lines
