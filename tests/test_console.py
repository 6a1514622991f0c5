"""Commands to copy are whole on terminals of any width, which copy a line that they wrap as one."""

import ast
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from rich.text import Text

import partwise
from lazy_imports import lazy_module
from partwise.cli.options import app
from partwise.cli.terminal import print_error
from partwise.comparison.report.rendering import _line
from partwise.console import RemoveControls, WholeLines
from partwise.plots.text_table import TextTable
from partwise.wrapping import wrap

lesson_text = lazy_module("partwise.cli.commands.lesson_text")

COMMAND = "partwise compare mingpt ffn=swiglu --first-seed 5 --data shakespeare-of-1623 --name attention.n-heads=8"
SENTENCE = f"Some words before it: `{COMMAND}` repeats it, and a few more words follow after the command."


def terminal(width: int) -> WholeLines:
    console = WholeLines(file=io.StringIO(), force_terminal=True, width=width, color_system=None, highlight=False)
    console.push_render_hook(RemoveControls())
    return console


def shown(console: WholeLines) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_command_is_whole_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In prose, errors, tables and reports, with the other lines no wider than the terminal, and nothing lost."""
    console = terminal(width)
    monkeypatch.setattr("partwise.cli.terminal.stderr_console", console)
    console.print(SENTENCE, markup=False)
    console.print(Text(SENTENCE, style="bold"))
    print_error(SENTENCE)
    console.print(_line(SENTENCE))
    console.print(TextTable(["name", "remedy"], [["one", SENTENCE]]))
    text = shown(console)
    assert text.count(f"`{COMMAND}`") == 5
    assert all(len(line.rstrip()) <= width or f"`{COMMAND}`" in line for line in text.splitlines())
    assert " ".join(text.split()).count(SENTENCE) >= 4


@pytest.mark.parametrize("width", [30, 60, 80])
def test_lessons_have_whole_commands_without_spaces_after_them(width: int) -> None:
    """Spaces after a backslash would end a command that goes on in the next line."""
    listing = f"{COMMAND} \\\n    --seeds 5"
    console = terminal(width)
    console.print(lesson_text.LessonText(f"{SENTENCE}\n\n```bash\n{listing}\n```\n\nThe `a  b` end."))
    text = shown(console)
    assert f"\n{listing}\n" in text
    assert text.count(COMMAND) == 2
    assert "a  b end." in text


def test_a_line_is_wrapped_between_words_only() -> None:
    assert wrap("a `b c d` e-f", 4, "- ", "  ") == ["- a", "  `b c d`", "  e-f"]
    assert wrap("", 9, "x") == []


COMMANDS = "|".join(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
BARE = re.compile(rf"\b(?:partwise (?:{COMMANDS})\b|pip install )")
CODE = re.compile("`[^`\n]+`")


def printed_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The texts that consoles wrap, those of errors included, with the values of f-strings as X."""
    pieces = {id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if ast.unparse(call.func) not in ("console.print", "ConfigError", "print_error", "tell"):
            continue
        if any(keyword.arg == "soft_wrap" for keyword in call.keywords):
            continue
        for text in (node for each in call.args for node in ast.walk(each) if id(node) not in pieces):
            if isinstance(text, ast.JoinedStr):
                yield call.lineno, "".join(str(v.value) if isinstance(v, ast.Constant) else "X" for v in text.values)
            elif isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield call.lineno, text.value


def test_every_printed_command_has_backticks_or_a_line_that_the_terminal_wraps() -> None:
    found = []
    for path in Path(partwise.__file__).parent.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        for line, text in printed_texts(ast.parse(source)) if BARE.search(source) else ():
            found += [f"{path}:{line}: {bare[0]}" for bare in BARE.finditer(CODE.sub("", text))]
    assert not found, "\n".join(found)
