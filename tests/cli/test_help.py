"""`--help` in terminals of any width: words are whole, in the same order, and only commands are longer than a line."""

import re
import sys

import pytest
import typer

from partwise import wrapping
from partwise.cli import main
from partwise.cli.options import app

EXAMPLE = re.compile("Example: .*")
COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["partwise", *words])
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    return capsys.readouterr().out


MODES = [["compare", "--help", mode] for mode in ("preset", "file", "refs")]


@pytest.mark.parametrize(
    "words", [[], ["--help"], *([command, "--help"] for command in COMMANDS), *MODES], ids=" ".join
)
def test_help_fits_terminals_of_any_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    whole = shown(monkeypatch, capsys, 200, *words)
    assert not set("…<>│") & set(whole), "cut words, Python types or boxes"
    for width in (40, 64, 80):
        text = shown(monkeypatch, capsys, width, *words)
        assert text.split() == whole.split()
        lines = [line for line in text.splitlines() if len(line) > width]
        assert all(
            len(wrapping.words(line)) == 1 or line.lstrip().startswith("Example: partwise ") for line in lines
        ), lines
        assert set(EXAMPLE.findall(text)) == set(EXAMPLE.findall(whole)), "a command to copy is one line"


def test_options_stand_in_their_groups(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(monkeypatch, capsys, 80, "compare", "--help", "preset").splitlines()
    assert lines[0] == "Usage: partwise compare [OPTIONS] PRESET [OVERRIDES...]"
    wanted = ["Arguments", "Options", "Arms", "Seeds and looks", "Decision", "Controls", "Tuning"]
    assert [line for line in lines if line in wanted] == wanted
    group = lines[lines.index("Seeds and looks") : lines.index("Decision")]
    assert any(line.startswith("  --first-seed N ") and line.endswith("[default: 0; at least 0]") for line in group)


def test_a_group_lists_its_commands(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(monkeypatch, capsys, 80, "study", "-h").splitlines()
    assert lines[0] == "Usage: partwise study [OPTIONS] COMMAND ..."
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert names == ["run", "list", "table", "judge", "time", "-h,"]


def test_commands_stand_in_groups(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(monkeypatch, capsys, 80, "--help").splitlines()
    headings = [line for line in lines if line and line[0].isalpha() and " " not in line]
    assert headings == ["Learn", "Train", "Compare", "Judge", "Teach", "Exchange", "Options"], (
        "no command is without a group"
    )
    names = [line.split()[0] for line in lines if line.startswith("  ") and line[2].isalpha()]
    assert sorted(names) == COMMANDS and names[0] == "lesson"
    assert "partwise compare --help preset (or file, refs, course)" in shown(
        monkeypatch, capsys, 80, "compare", "--help"
    )


def test_the_first_commands_are_whole_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "  partwise compare mingpt ffn=swiglu" in shown(monkeypatch, capsys, 30).splitlines()
