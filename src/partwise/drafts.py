"""New folders and files that are either complete or absent."""

import gc
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from partwise.config import ConfigError
from partwise.files import rename, replace_file, sync
from partwise.machine import is_alive


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A hidden folder beside `target` to fill; it becomes `target`, which is absent or empty, if the block raises nothing.

    A killed process leaves at most the hidden folder, which the next call for the same target deletes. Raises OSError.
    """
    target = target.absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_drafts(target)
    draft = hidden_sibling(target, "tmp")
    try:
        draft.mkdir()
        yield draft
        for folder, _, files in os.walk(draft):
            for name in [*files, "."]:
                sync(Path(folder, name))
        rename(draft, target)
    except BaseException:
        if sys.platform == "win32":
            gc.collect()  # a model that nothing but itself refers to may still have a file of it mapped
        shutil.rmtree(draft, ignore_errors=True)
        raise
    with suppress(OSError):  # the folder is there; only a power failure could still undo the renaming
        sync(target.parent)


def write_output(path: Path, text: str) -> None:
    """Write a file that a user has named: at once, unless it is a link, a pipe or a device. Raises ConfigError."""
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            path.write_text(text, encoding="utf-8", newline="\n")
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


def make_draft(target: Path) -> Path:
    """Make an empty hidden folder that its caller renames to `target` once it is complete."""
    make_folder(target.parent)
    draft = hidden_sibling(target, "tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    return draft


def make_folder(path: Path) -> None:
    """Make a folder and its parents, synced to disk so that they survive a power failure."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def remove_leftovers(parent: Path) -> None:
    """Delete the hidden folders and files that a killed process left in `parent`; only its owner may call this."""
    for path in list(parent.glob(".*")):
        match = re.fullmatch(r"\.(.+)\.(\d+)\.(tmp|old)", path.name)
        if match and match[3] == "tmp" and int(match[2]) != os.getpid() and is_alive(int(match[2])):
            continue  # being written: a comparison writes job.json into the folder of a run that a worker owns
        if match and match[3] == "old" and not (parent / match[1]).exists():
            rename(path, parent / match[1])  # killed between the two renames of a replacement
        elif match and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif match:
            path.unlink(missing_ok=True)


def hidden_sibling(target: Path, suffix: str) -> Path:
    """The hidden name beside `target` that belongs to this process."""
    return target.with_name(f".{target.name}.{os.getpid()}.{suffix}")
