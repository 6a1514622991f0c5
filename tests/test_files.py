"""Writing: links planted in a folder lead nowhere, and a file is replaced whole or stays."""

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from comparisons import ARITHMETIC
from partwise.any_code.result_files import exclusive
from partwise.cli import main
from partwise.comparison.experiment import Comparison
from partwise.config import ConfigError
from partwise.files import open_file, replace_file, write_file
from partwise.json_files import write_json
from partwise.plots.layout import write_text
from partwise.run_names import FolderLock
from programs import comparison, write_program

SECRET = "what the link points to"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim.txt"
    path.write_text(SECRET)
    return path


def test_a_link_under_the_name_is_not_followed(tmp_path: Path, victim: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(victim)
    for write in (lambda: write_file(link, b"x"), lambda: open_file(link, "a+"), lambda: open_file(link, "ab")):
        with pytest.raises(OSError, match="symbolic link, which is not followed: remove it"):
            write()
    assert victim.read_text() == SECRET


@pytest.mark.parametrize("write", [lambda path: replace_file(path, b"new"), lambda path: write_json(path, [1])])
def test_a_link_or_its_draft_is_replaced(tmp_path: Path, victim: Path, write: Callable[[Path], None]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("file", f".file.{os.getpid()}.tmp", ".file.tmp"):
        (folder / name).symlink_to(victim)
    write(folder / "file")
    assert victim.read_text() == SECRET and not (folder / "file").is_symlink()
    assert (folder / "file").read_bytes() in (b"new", b"[\n 1\n]")


def test_a_page_is_written_beside_a_planted_draft(tmp_path: Path, victim: Path) -> None:
    (tmp_path / ".report.html.tmp").symlink_to(victim)
    write_text(tmp_path / "report.html", "page")
    assert victim.read_text() == SECRET and (tmp_path / "report.html").read_text() == "page"


def test_on_an_error_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(OSError, match="No space"):
                replace_file(tmp_path / "file", b"new")
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "old"}


NAMES = (
    ".lock",
    ".pid",
    "run.json",
    "metrics.jsonl",
    "report.html",
    ".run.json.tmp",
    "error.txt",
    "status.json",
    "job.json",
)


def test_links_in_a_received_run_folder_lead_nowhere(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever training does with the folder, it ends well or in one line, and the file that links point to stays."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        folder = tmp_path / "runs" / f"run-{NAMES.index(name)}"
        folder.mkdir(parents=True)
        (folder / name).symlink_to(victim)
        words = ["train", "mingpt", *ARITHMETIC, "--data", "arithmetic", "--name", folder.name]
        monkeypatch.setattr("sys.argv", ["partwise", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        error = capsys.readouterr().err
        assert ended.value.code in (0, 2) and "Traceback" not in error, error
        assert ended.value.code == 0 or len(error.splitlines()) == 1, error
        assert victim.read_text() == SECRET, name


@pytest.mark.parametrize("link", ["", "checkpoints", "tensorboard", "wandb", "ranks", "checkpoints/step-00000001"])
def test_linked_folders_of_a_run_are_refused(
    tmp_path: Path, link: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path, elsewhere = Path("runs/run") / link, tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.parent.mkdir(parents=True)
    path.symlink_to(elsewhere)
    for fresh in ([], ["--fresh"]):
        words = ["train", "mingpt", *ARITHMETIC, "--data", "arithmetic", "--name", "run", *fresh]
        monkeypatch.setattr("sys.argv", ["partwise", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        error = capsys.readouterr().err
        assert (ended.value.code, error) == (
            2,
            f"error: {path} is a symbolic link, which is not followed: remove it\n",
        )
        assert path.is_symlink() and not list(elsewhere.iterdir())


def test_a_linked_lock_is_named(tmp_path: Path, victim: Path) -> None:
    """Not the folder: the advice is to remove it."""
    (tmp_path / ".lock").symlink_to(victim)
    with pytest.raises(ConfigError) as caught:
        FolderLock(tmp_path)
    lock = tmp_path / ".lock"
    assert str(caught.value) == f"cannot write {lock}: it is a symbolic link, which is not followed: remove it"


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Not a substitute: it would stay when its process is killed."""

    def flock(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    expected = f"cannot lock {tmp_path / '.lock'}: its file system has no locks: choose a folder on another one"
    with pytest.raises(ConfigError, match=re.escape(expected)):
        FolderLock(tmp_path)
    with pytest.raises(ConfigError, match="its file system has no locks"), exclusive(tmp_path / "a.lock", lambda: True):
        pass


@pytest.mark.parametrize(
    "link",
    ["", "runs", "tuning", "check", "worktrees", "runs/0-base", "runs/0-base/seed-0", "runs/0-base/seed-0/output"],
)
def test_linked_folders_of_a_comparison_are_refused(tmp_path: Path, link: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_program(tmp_path)
    path, elsewhere = tmp_path / "runs/c" / link, tmp_path / "elsewhere"
    elsewhere.mkdir()
    path.parent.mkdir(parents=True)
    path.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match=f"{path.name} is a symbolic link, which is not followed: remove it"):
        comparison(tmp_path).run()
    assert path.is_symlink() and not list(elsewhere.iterdir())


def test_links_in_a_comparison_are_refused(tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_program(tmp_path)
    other = tmp_path / "elsewhere"
    (other / "output").mkdir(parents=True)
    (other / "output" / "mine.txt").write_text("stays")
    (tmp_path / "runs/c/runs/0-base").mkdir(parents=True)
    (tmp_path / "runs/c/runs/0-base/seed-0").symlink_to(other)
    made: Comparison = comparison(tmp_path)
    with pytest.raises(ConfigError, match="seed-0 is a symbolic link, which is not followed: remove it"):
        made.run()
    assert [path.name for path in other.iterdir()] == ["output"] and (other / "output/mine.txt").exists()
    (tmp_path / "runs/c/runs/0-base/seed-0").unlink()
    (tmp_path / "runs/c/.lock").symlink_to(victim)
    with pytest.raises(ConfigError, match=r"\.lock|symbolic link"):
        made.run()
    assert victim.read_text() == SECRET
    (tmp_path / "runs/c/.lock").unlink()
    assert made.run().verdicts == {"gain": "better"} and json.loads((tmp_path / "runs/c/compare.json").read_text())
