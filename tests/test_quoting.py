"""Commands that people copy work in their shell."""

import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partwise import quoting


@pytest.mark.skipif(sys.platform == "win32", reason="words of another shell")
@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8), max_size=4))
def test_a_posix_shell_reads_the_words(words: list[str]) -> None:
    assert shlex.split(quoting.join(words)) == words


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        (r"runs\demo\runs\1-positions=rope\seed-0", r"runs\demo\runs\1-positions=rope\seed-0"),
        (r"C:\a folder\run", r'"C:\a folder\run"'),
        ("--arms=a,b", '"--arms=a,b"'),
        ("", '""'),
        ('say "hi" to $me, it\'s', "'say \"hi\" to $me, it''s'"),
        ("{seed}", '"{seed}"'),
    ],
)
def test_words_in_powershell(monkeypatch: pytest.MonkeyPatch, word: str, shown: str) -> None:
    monkeypatch.setattr(quoting, "sys", SimpleNamespace(platform="win32"))
    assert quoting.quote(word) == shown
    if shown.startswith('"'):  # as a program of Windows takes its command line apart
        assert subprocess.list2cmdline([word]) in (shown, word)


def test_powershell_runs_a_program_in_quotes_only_after_an_ampersand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quoting, "sys", SimpleNamespace(platform="win32"))
    assert quoting.program(r".venv\Scripts\partwise") == r".venv\Scripts\partwise"
    assert quoting.program(r"C:\a folder\partwise") == r'& "C:\a folder\partwise"'
