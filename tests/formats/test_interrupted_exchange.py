"""`export` and `import` killed at every operation on a file, and on a full disk: nothing half-written has a name, and the
same command succeeds afterwards."""

import json
import os
import resource
import shutil
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults import in_child
from formats_hostile import intact_folder
from lazy_imports import lazy_module
from partwise.ablation.run_list import list_runs
from partwise.cli import main

lazy_module("transformers")

EXPORT, WRAPPED, IMPORT = (
    ["export", "intact", "out"],
    ["export", "run", "out", "--family", "partwise"],
    ["import", "intact"],
)
CASES = {"export": (EXPORT, Path("out")), "wrapped": (WRAPPED, Path("out")), "import": (IMPORT, Path("runs/intact"))}
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of `transformers`, and with its run."""
    folder = tmp_path_factory.mktemp("project")
    intact_folder(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert status_of(["import", "intact", "--name", "run"]) == 0
        for words, target in CASES.values():  # imports what the children need, once
            assert status_of(words) == 0
            shutil.rmtree(target)
    return folder


@pytest.fixture
def here(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(project, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    yield tmp_path / "project"


def status_of(words: list[str]) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["partwise", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)


def run(words: list[str], *, kill_at: int | None = None, largest_file: int | None = None) -> int:
    """The exit status of a command in a child, which may be killed before a change of files, or may write no larger file."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if opened or event in CHANGES:
            if count == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            count += 1

    def work() -> None:
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
        if kill_at is not None:
            sys.addaudithook(hook)
        status = status_of(words)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)

    return os.waitstatus_to_exitcode(os.waitpid(in_child(work), 0)[1])


def contents(folder: Path) -> dict[Path, bytes]:
    """All files but those that name the time or the command."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "run.json"
    }


@pytest.mark.parametrize("name", CASES)
def test_a_killed_command_leaves_a_whole_folder_or_none(name: str, here: Path) -> None:
    words, target = CASES[name]
    names = {path.name for path in target.parent.iterdir()} if target.parent.exists() else {"run"}
    assert run(words) == 0
    whole = contents(target)
    shutil.rmtree(target)
    complete = 0
    for kill_at in range(200):  # each meets what the ones before it left
        status = run(words, kill_at=kill_at)
        if status == 0:
            break
        assert status == -signal.SIGKILL
        if target.exists():
            assert contents(target) == whole
            complete += 1
            shutil.rmtree(target)
        assert all(entry.state != "damaged" for entry in list_runs(Path("runs")))
    assert kill_at > 8 and complete <= 1, "killed only before or after it has its name"
    assert contents(target) == whole
    assert {path.name for path in target.parent.iterdir()} == names | {target.name, "stdout", "stderr"} - (
        {"stdout", "stderr"} if target.parent != Path() else set()
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("largest_file", [300, 1000, 8000])
def test_a_full_disk_is_one_line_and_leaves_nothing(name: str, largest_file: int, here: Path) -> None:
    words, target = CASES[name]
    before = {path for path in here.rglob("*") if path.name not in ("stdout", "stderr")}
    assert run(words, largest_file=largest_file) == 2
    error = Path("stderr").read_text()
    assert error.count("\n") == 1 and error.startswith("error: cannot write"), error
    assert {path for path in here.rglob("*") if path.name not in ("stdout", "stderr")} == before
    assert run(words) == 0 and target.is_dir()


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_modes_of_the_umask(mask: int, here: Path) -> None:
    before = os.umask(mask)
    try:
        for words, target in CASES.values():
            shutil.rmtree(target, ignore_errors=True)
            assert status_of(words) == 0
            for path in (target, *target.rglob("*")):
                assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~mask, path
    finally:
        os.umask(before)


def test_an_imported_model_is_listed_as_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = list_runs(Path("runs"))
    assert (entry.name, entry.kind, entry.state, entry.what) == ("run", "run", "imported (llama)", "import intact")
    assert entry.parameters is not None and entry.loss is None and entry.data == ""
    shutil.copytree("runs/run", "runs/.other.4999123.tmp")  # as an earlier process could have left it
    assert [entry.name for entry in list_runs(Path("runs"))] == ["run"]
    assert status_of(["runs"]) == 0 and "imported (llama)" in capsys.readouterr().out


def test_a_failed_comparison_of_logits_leaves_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from partwise.cli.commands import export

    monkeypatch.setattr(export, "TOLERANCE", dict.fromkeys(export.TOLERANCE, -1.0))
    for words in (EXPORT, WRAPPED):
        assert status_of(words) == 2
        assert {path.name for path in here.iterdir()} == {"intact", "runs"}


def test_a_release_without_the_family_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers.models.auto import configuration_auto

    monkeypatch.delitem(configuration_auto.CONFIG_MAPPING_NAMES, "llama")
    assert status_of(EXPORT) == 0
    assert "has no Llama models: `pip install --upgrade transformers`" in capsys.readouterr().out
    assert json.loads(Path("out/config.json").read_text())["model_type"] == "llama"


def test_an_older_release_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transformers.__version__", "4.50.3")
    assert status_of(EXPORT) == 0
    assert "not compared with transformers: 4.50.3 is older than 4.56" in capsys.readouterr().out
    assert status_of([*WRAPPED[:2], "other", *WRAPPED[3:]]) == 2
    assert "--family partwise needs transformers: 4.50.3 is older than 4.56" in capsys.readouterr().err
