"""New folders and files of users that are either complete or absent."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from partwise.config import ConfigError
from partwise.files import replace_file, sync
from partwise.machine import is_alive


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target` to fill; it becomes `target`, which is absent or empty, if the block raises nothing.

    A killed process leaves at most the hidden folder, which the next call for the same target deletes. Raises OSError.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(target)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.mkdir()
        yield draft
        for folder, _, files in os.walk(draft):
            for name in [*files, "."]:
                sync(Path(folder, name))
        os.rename(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    with suppress(OSError):  # the folder is there; only a power failure could still undo the renaming
        sync(target.parent)


def write_output(path: Path, text: str) -> None:
    """Write a file that a user has named: at once, unless it is a link, a pipe or a device. Raises ConfigError."""
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8")
        else:
            remove_drafts(path)
            replace_file(path, text.encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}; choose another file") from None


def remove_drafts(target: Path) -> None:
    """Delete the hidden folders and files that earlier processes, killed since, have left beside a target."""
    for path in list(target.parent.glob(".*.tmp")):
        match = re.fullmatch(rf"\.{re.escape(target.name)}\.(\d+)\.tmp", path.name)
        if match and (int(match[1]) == os.getpid() or not is_alive(int(match[1]))) and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
