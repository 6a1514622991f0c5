"""Folders and files that are complete or absent."""

import errno
import os
from pathlib import Path

import pytest

from partwise.config import ConfigError
from partwise.drafts import new_folder, write_output

DEAD = 4999123
"""No process has this number: it is larger than the kernel's largest."""


def test_a_folder_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "some" / "folder"
    with new_folder(target) as draft:
        (draft / "file").write_text("content")
        assert not target.exists() and draft.parent == target.parent
    assert (target / "file").read_text() == "content" and [*target.parent.iterdir()] == [target]


def test_an_error_leaves_nothing_and_an_empty_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(KeyboardInterrupt), new_folder(target) as draft:
        (draft / "file").write_text("content")
        raise KeyboardInterrupt
    assert [*tmp_path.iterdir()] == [target] and not [*target.iterdir()]
    (target / "mine").write_text("kept")
    with pytest.raises(OSError), new_folder(target) as draft:  # filled while the draft was written
        (draft / "file").write_text("content")
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_only_drafts_of_ended_processes_for_the_same_target_are_deleted(tmp_path: Path) -> None:
    names = [
        f".folder.{DEAD}.tmp",
        f".folder.{os.getppid()}.tmp",
        f".folder.b.{DEAD}.tmp",
        f".other.{DEAD}.tmp",
        ".folder.tmp",
    ]
    for name in names:
        (tmp_path / name).mkdir()
    with new_folder(tmp_path / "folder"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"folder", *names[1:]}


def test_a_failed_output_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "scores.json"
    write_output(path, "old")
    (tmp_path / f".scores.json.{DEAD}.tmp").write_text("ha")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            ConfigError, match=r"cannot write .*scores\.json: No space left on device; choose another file"
        ):
            write_output(path, "new")
    assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]
    write_output(path, "new")
    assert path.read_text() == "new"


def test_outputs_that_are_no_regular_files_are_written_in_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    write_output(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "text"
    write_output(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()
