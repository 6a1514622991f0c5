"""The page of a class: its table, then every hand-in with its checks and the source of its part. All text is escaped."""

from collections.abc import Iterable
from pathlib import Path

from partwise.classroom.collection import Collection, Entry
from partwise.classroom.summary import HEAD, UNDETECTED, class_sentences, row, verdict
from partwise.comparison.report.rendering import MARKS
from partwise.config import ConfigError
from partwise.drafts import write_output
from partwise.messages import CONTROLS
from partwise.plots.blocks import Block, Paragraph, Section, Table
from partwise.plots.layout import render_page

OUTCOMES = {"holds": "✓", "objection": "✕", "missing": "–", "told": "·"}
LONGEST_SOURCE = 40_000
"""Characters of a part's file that the page shows."""


def write_page(collection: Collection, path: Path) -> None:
    """Write the page. Raises ConfigError."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"--page {path}: give a file that ends in .html")
    title = f"What did one change of {collection.assignment.preset} buy?"
    values = {
        "title": title,
        "sentences": class_sentences(collection),
        "undetected": UNDETECTED,
        "sections": sections(collection),
        "plan": collection.assignment.plan_hash[:16],
    }
    write_output(path, render_page("classroom/page.html.jinja", values))


def sections(collection: Collection) -> list[Section]:
    """The class, then a section per hand-in."""
    found = [Section("The class", [Table(HEAD, [row(entry) for entry in collection.entries], left=3)])]
    rows = [[entry.name, check.what, check.text] for entry in collection.entries for check in entry.objections]
    if rows:
        found.append(Section("Objections", [Table(["hand-in", "check", "found"], rows, left=3)]))
    if collection.refused or collection.notes:
        lines = [*(f"{name}: {reason}" for name, reason in collection.refused.items()), *collection.notes]
        found.append(Section("Not readable", [Paragraph(line) for line in lines]))
    return [*found, *(Section(entry_title(entry), list(blocks(entry))) for entry in collection.entries)]


def entry_title(entry: Entry) -> str:
    mark = MARKS[(entry.effect.verdict if entry.effect else None) or "none"]
    return f"{mark} {entry.name}: {entry.change}" + (" (objection)" if entry.objections else "")


def blocks(entry: Entry) -> Iterable[Block]:
    """The verdict, the checks, and the files of the part."""
    yield Paragraph(entry.effect.sentence if entry.effect else verdict(None))
    rows = [[f"{OUTCOMES[check.outcome]} {check.what}", check.text] for check in entry.checks]
    yield Table(["check", "found"], rows, left=2)
    for name, content in entry.hand_in.sources.items():
        text = content.decode("utf-8", errors="replace").translate(CONTROLS)
        cut = f"\n... ({len(text):,} characters)" if len(text) > LONGEST_SOURCE else ""
        yield Paragraph(f"# {name}\n{text[:LONGEST_SOURCE]}{cut}", kind="verbatim")
