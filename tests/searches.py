"""A repository with a program that is tried: a shell script that ends within milliseconds, whose noise follows its seed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from partwise.any_code import open_search as open_search_module
from partwise.any_code import search_ledger
from partwise.any_code.open_search import open_search
from partwise.any_code.search_settings import SearchSettings
from partwise.comparison.search.answer import Tried
from partwise.comparison.search.rule import Design
from repositories import git

TRAIN = """\
. ./settings.sh
echo $SEED >> "$LOG"
[ -z "$FAIL" ] || { echo out of ideas >&2; exit 1; }
echo "loss $((100000 + GAIN + ${1:-0} + (SEED * 7919) % 97))"
"""

ENVIRONMENT = {"code": {}, "packages": "", "machine": {"cores": 2}, "variables": {}}
"""In place of the packages of this environment, which take half a second to list."""

METRIC = {"pattern": r"loss (\S+)", "name": "loss", "better": "lower"}


def make_repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The start, on main, and a rule of few runs. Each run adds its seed to the file `ran` of the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(SearchSettings, "design", Design(pool=4, promotion=3))
    monkeypatch.setattr(open_search_module, "describe_environment", lambda *_: dict(ENVIRONMENT))
    monkeypatch.setattr(search_ledger, "code_version", dict)
    git("init", "--quiet", "--initial-branch=main")
    (folder / "train.sh").write_text(TRAIN)
    (folder / "settings.sh").write_text("GAIN=0\nFAIL=\n")
    (folder / "measure.sh").write_text('echo "loss $(cat "$1/loss")"\n')
    (folder / ".gitignore").write_text("runs\nran\n*.patch\n")
    git("add", ".")
    git("commit", "--quiet", "--message=the start")
    return folder


def command(folder: Path) -> str:
    return f"env SEED={{seed}} LOG={folder}/ran sh train.sh"


def settings(folder: Path, **others: object) -> dict[str, object]:
    return {"command": command(folder), "minutes": 0.1, **others}


def commit(message: str, **files: str) -> str:
    """A commit on the present branch, with these files; a name with `__` has a dot there."""
    for name, text in files.items():
        Path(name.replace("__", ".")).write_text(text)
    git("add", "--all")
    git("commit", "--quiet", f"--message={message}")
    return git("rev-parse", "HEAD")


def ran(folder: Path) -> list[int]:
    """The seeds that have run, in order."""
    file = folder / "ran"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def answer(folder: Path, candidate: str, **others: object) -> Tried:
    with open_search("s", settings(folder, **others), METRIC) as opened:
        return opened.answer(candidate, "", again=False)


def try_(*words: str) -> Result:
    from partwise.cli import app

    return CliRunner().invoke(app, ["try", *words])


def words(folder: Path, *more: str) -> Sequence[str]:
    return ["--search", "s", "--command", command(folder), "--metric", METRIC["pattern"], "--minutes", "0.1", *more]
