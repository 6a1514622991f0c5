"""The lessons as slides in one HTML file: question, problem, idea, prediction, answer, exercise, from the stored answers."""

import base64
import re
from collections.abc import Iterable, Iterator
from typing import Any

from partwise.lessons.answers import read_answer
from partwise.lessons.findings import answer_table, draw_picture, picture_table
from partwise.lessons.lesson import PICTURE, Lesson, with_listings
from partwise.plots.layout import code_spans, template_environment

BLOCK = re.compile(r"^```(?:\w*)\n(.*?)^```\n?", re.DOTALL | re.MULTILINE)


def slides(lessons: Iterable[Lesson]) -> str:
    """An HTML file that needs nothing beside it; a browser prints one slide a page."""
    environment = template_environment()
    environment.filters["code_spans"] = code_spans
    return environment.get_template("lessons/slides.html.jinja").render(lessons=[contents(each) for each in lessons])


def contents(lesson: Lesson) -> dict[str, Any]:
    """What the template shows of a lesson."""
    answer, sections = read_answer(lesson), lesson.sections
    captions = [PICTURE.search(sections[name]) for name in ("The problem", "The answer")]
    columns, *rows = answer_table(answer, None)
    if lesson.head.picture == "search":  # what its rules keep says more than its quantities
        table = picture_table(answer, before=False)
        columns, rows = table.columns, table.rows
    return {
        "lesson": lesson,
        "problem": encode(draw_picture(answer, before=True)) if lesson.head.problem else "",
        "answer": encode(draw_picture(answer, before=False)),
        "captions": [found[1] if found else "" for found in captions],
        "why": paragraphs(sections["The problem"])[:1],
        "code": [found[1] for found in BLOCK.finditer(with_listings(sections["The idea"]))],
        "prediction": paragraphs(sections["Your prediction"]),
        "columns": columns,
        "rows": rows,
        "exercise": [*text_and_code(sections["An exercise"])],
    }


def text_and_code(text: str) -> Iterator[tuple[str, str]]:
    """("text", a paragraph) and ("code", a listing), in their order."""
    end = 0
    for found in BLOCK.finditer(text):
        yield from (("text", each) for each in paragraphs(text[end : found.start()]))
        yield "code", found[1]
        end = found.end()
    yield from (("text", each) for each in paragraphs(text[end:]))


def encode(svg: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def paragraphs(text: str) -> list[str]:
    """The text without figures, listings, links and emphasis; code stays between backticks."""
    text = BLOCK.sub("", PICTURE.sub("", text))
    text = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"(?<![`*\w])\*{1,2}([^*`]+)\*{1,2}(?!\w)", r"\1", text)
    return [" ".join(each.split()) for each in text.split("\n\n") if each.strip()]
