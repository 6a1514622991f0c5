"""The slides of the course: every lesson, nothing but text and figures in one file."""

import base64
import html
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from partwise.cli import app
from partwise.config import ConfigError
from partwise.lessons import slides as module
from partwise.lessons.findings import draw_picture
from partwise.lessons.lesson import all_lessons

LESSONS = all_lessons()


def test_slides_show_every_lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    """Question, listing, prediction, exercise and figures, with their text and without marks of Markdown."""
    monkeypatch.setattr(module, "draw_picture", lambda answer, before: f"<svg>{answer.lesson.number}{before}</svg>")
    text = module.slides(LESSONS.values())
    assert not re.search(r"https?://|<script|<link(?! rel=\"icon\")", text)
    pictures = [
        base64.b64decode(each).decode() for each in re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', text)
    ]
    visible = html.unescape(re.sub(r"<style>.*?</style>|<[^>]+>", "", text, flags=re.DOTALL))
    for number, lesson in LESSONS.items():
        assert pictures.count(f"<svg>{number}False</svg>") == 1
        assert pictures.count(f"<svg>{number}True</svg>") == bool(lesson.head.problem)
        exercise = [each for kind, each in module.text_and_code(lesson.sections["An exercise"]) if kind == "text"]
        assert all(each.replace("`", "") in visible for each in (lesson.head.title, lesson.head.question, *exercise))
        assert module.contents(lesson)["code"] and module.contents(lesson)["prediction"]
    assert visible.index("Define an idea of your own") < visible.index("class Mine(") < visible.index("Change what it")
    for each in re.findall(r"<p[ >].*?</p>", text, re.DOTALL):
        assert not re.search(r"`|\*\*|\]\(|literalinclude", each), each
    assert text.count("</section>") == 6 * len(LESSONS)


def test_slides_of_one_lesson_are_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "slides.html"
    result = CliRunner().invoke(app, ["lesson", "7", "--slides", str(path)])
    assert result.exit_code == 0 and "1 lesson, to open in a browser" in " ".join(result.output.split())
    [picture] = re.findall(r"base64,([^\"]+)", path.read_text(encoding="utf-8"))
    assert base64.b64decode(picture).decode() == draw_picture(module.read_answer(LESSONS[7]), before=False)
    wrong = CliRunner().invoke(app, ["lesson", "--slides", str(tmp_path / "slides")])
    assert isinstance(wrong.exception, ConfigError) and "such as slides.html" in str(wrong.exception)
    assert not (tmp_path / "slides").exists()
