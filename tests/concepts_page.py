"""docs/glossary.md and docs/settings.md: concepts, words and settings, from one file and from the code."""

import re
from collections.abc import Iterator
from itertools import groupby

from parts_page import built_in, cell
from partwise.concepts.answer import concept_answer
from partwise.concepts.entries import Concept, Word, concept_of, entries
from partwise.concepts.settings import Setting, part_options, run_settings

SHOWN_SYNONYMS = 4


def glossary() -> str:
    """The page of concepts and words as Markdown."""
    lines = [
        "# Glossary",
        "",
        "The concepts behind parts and settings, then the words of the project. `partwise parts WORD` prints one in a",
        "terminal, found by any of its names. Generated from `src/partwise/concepts/concepts.yaml` by `make generate`.",
    ]
    for topic, concepts in groupby(entries().concepts, lambda each: each.topic):
        lines += ["", f"## {topic}"]
        for concept in concepts:
            lines += ["", *section(concept)]
    for topic, words in groupby(entries().words, lambda each: each.topic):
        lines += [
            "",
            f"## Words: {topic[0].lower()}{topic[1:]}",
            "",
            "| word | meaning |",
            "|---|---|",
            *map(row, words),
        ]
    shapes = ", ".join(f"`{symbol}` {meaning}" for symbol, meaning in entries().shapes.items())
    return "\n".join([*lines, "", "## Shapes", "", f"{shapes}."]) + "\n"


def section(concept: Concept) -> Iterator[str]:
    """The entry of one concept: its text, then a list of what belongs to it."""
    rows = concept_answer(concept, concept.part_names[0] if len(concept.part_names) == 1 else None, results=True).rows
    yield from (f"### {heading(concept)}", "", cell(concept.why), "")
    if concept.also:
        yield f"- Also: {cell(', '.join(concept.also[:SHOWN_SYNONYMS]))}"
    if "equation" in rows:
        where = f", with {cell(rows['where'])}" if "where" in rows else ""
        yield f"- Equation: `{rows['equation'].replace('`', '')}`{where}"
    if "example" in rows:
        yield f"- Example: `{rows['example']}`"
    if concept.part_names:
        yield f"- Parts: {', '.join(map(part_link, concept.part_names))}"
    if concept.settings:
        yield f"- Settings: {', '.join(map(setting_link, concept.settings))}"
    if "result" in rows:
        result = re.sub(r"\(study ([\w-]+)\)", r"(study [\1](studies.md#\1))", cell(rows["result"]))
        yield f"- Result: {result}"
    if "lesson" in rows:
        yield f"- Lesson: {cell(rows['lesson'])}"
    yield f"- Code: `{rows['file']}`"
    yield f"- Try: `{concept.command}`"


def heading(concept: Concept) -> str:
    return "The dollar sign" if concept.name == "$" else concept.name


def anchor(title: str) -> str:
    """A heading's anchor, as GitHub and MyST form it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def part_link(name: str) -> str:
    return f"[`{name}`](parts-reference.md#{name.partition('=')[0]})"


def setting_link(path: str) -> str:
    return f"[`{path}`](settings.md#{section_of(path)})"


def section_of(path: str) -> str:
    family, _, option = path.partition(".")
    return family if option else "the-model" if family not in RUN_FAMILIES else "the-run"


def row(word: Word) -> str:
    return f"| {word.name} | {word.meaning} |"


RUN_FAMILIES = ("optimizer", "schedule", "averaging", "data", "tokenizer")
COLUMNS = ["", "| setting | type | default | what it does | concept |", "|---|---|---|---|---|"]


def settings() -> str:
    """The page of all settings as Markdown. Raises ValueError for a setting without a docstring."""
    run = list(run_settings())
    sections = [
        ("The model", [each for each in run if "." not in each.path and each.path not in RUN_FAMILIES]),
        ("The run", [each for each in run if each.path in RUN_FAMILIES]),
        ("train", [each for each in run if each.path.startswith("train.")]),
        ("from", [each for each in run if each.path.startswith("from.")]),
    ]
    families = built_in()
    options = [
        each for each in part_options() if {*each.parts} & {f"{a}={b}" for a, names in families.items() for b in names}
    ]
    for family in ("data", *(each for each in sorted(families) if each != "data")):
        sections.append((family, [each for each in options if each.path.startswith(f"{family}.")]))
    lines = [
        "# Settings",
        "",
        "Every setting of a run and every option of a part, as in `partwise train mingpt train.lr=1e-3 ffn.bias=true`.",
        "`partwise parts NAME` prints one in a terminal, `partwise show PRESET` the values of a preset. Generated from the",
        "code by `make generate`.",
    ]
    for title, found in sections:
        if found:
            lines += ["", f"## {title}", *COLUMNS, *(settings_row(each) for each in found)]
    return "\n".join(lines) + "\n"


def settings_row(setting: Setting) -> str:
    if not setting.about:
        raise ValueError(f"{setting.path} of {setting.file} has no docstring: write one below the field")
    concept = concept_of(setting.path)
    link = f"[{cell(concept.name)}](glossary.md#{anchor(heading(concept))})" if concept else ""
    parts = f" ({', '.join(setting.parts)})" if setting.parts else ""
    about = f"{code_kept(setting.about)}{cell(parts)}"
    return f"| `{setting.path}` | {cell(setting.kind)} | {cell(setting.default)} | {about} | {link} |"


def code_kept(text: str) -> str:
    """Text for a cell, whose code in backticks stays code."""
    return "".join(
        piece.replace("|", "\\|") if piece.startswith("`") else cell(piece) for piece in re.split(r"(`[^`]*`)", text)
    )
