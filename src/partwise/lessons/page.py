"""A lesson as a page of the site and as a notebook. Both follow from its source and the stored answer."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from partwise.lessons.answers import StoredAnswer, read_answer
from partwise.lessons.findings import answer_table, claims_lines, picture_table, verdict_lines
from partwise.lessons.lesson import GENERATED, LISTING, PICTURE, SECTIONS, Lesson, program


def page(lesson: Lesson) -> str:
    """The text of the page: its source, with the answer between the two comments."""
    return GENERATED.sub(lambda _: "\n".join(answer_block(lesson)), lesson.path.read_text(encoding="utf-8"))


def answer_block(lesson: Lesson) -> Iterator[str]:
    """The commands, the quantities, the verdicts, and what larger models said."""
    yield "<!-- answer -->"
    yield "```bash"
    yield f"partwise lesson {lesson.number}"
    yield "```\n"
    answer = read_answer(lesson)
    if lesson.head.picture == "search":
        table = picture_table(answer, before=False)
        yield from markdown_table(table.columns, table.rows)
        yield ""
    columns, *rows = answer_table(answer, None)
    yield from markdown_table(columns, rows)
    yield f"\n{how_to_read(answer)}\n"
    for line in [*verdict_lines(answer, None), *claims_lines(lesson)]:
        yield f"- {line}"
    yield "<!-- end -->\n"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def how_to_read(answer: StoredAnswer) -> str:
    return (
        f"Of {answer.seeds} seeds, in {answer.precision} on {answer.machine}. The last column has the values of 999 of 1,000 "
        f"readers, each with {answer.lesson.seeds} seeds of their own."
    )


def notebook(lesson: Lesson) -> str:
    """The lesson as a notebook: its text, its listings as code, the run, and the exercise."""
    head = lesson.head
    cells = [markdown(f"# Lesson {lesson.number}. {head.title}\n\n{head.question} About {head.minutes:g} minutes.")]
    shown = set[str]()
    for section in SECTIONS:
        text = lesson.sections[section]
        files = [match[1] for match in LISTING.finditer(text)]
        cells.append(markdown(f"## {section}\n\n{LISTING.sub('', text).strip()}"))
        cells += [code(program(file)) for file in dict.fromkeys(files) if file not in shown]
        shown |= set(files)
        if section == "Your prediction":
            cells.append(code("prediction = None  # a range, such as (-0.05, 0.02)"))
        if section == "The run":
            run = f"from partwise.lessons import show\n\nmeasured = show.run({lesson.number}, prediction)"
            cells.append(code(run))
        if section == "The answer":
            cells.append(code(f"show.answer({lesson.number}, measured)"))
        if section == "An exercise":
            cells.append(code(f'show.check({lesson.number}, "")'))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def markdown(text: str) -> dict[str, Any]:
    text = PICTURE.sub(r"*Figure on the page of the lesson: \1.*\n\n", text)
    return {"cell_type": "markdown", "id": "", "metadata": {}, "source": text.strip().splitlines(keepends=True)}


def code(text: str) -> dict[str, Any]:
    source = text.splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "id": "", "metadata": {}, "outputs": [], "source": source}
