"""Files on disk: written whole and never through a link, hashed, and trusted only if no other user could have changed them.

A folder from elsewhere may have links under the names that we write. Imports no torch.
"""

import errno
import gc
import hashlib
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from partwise import windows
from partwise.config import ConfigError
from partwise.config.reading import open_regular, open_to_read

PACKAGE = Path(__file__).parent
"""The folder of this package."""

SOURCES = (".py", ".cpp", ".h")
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


def working_folder() -> Path:
    """The current folder. Raises ConfigError if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the working folder was deleted: change to an existing folder (cd), then rerun") from None


def open_file(path: Path, mode: str, **options: Any) -> IO[Any]:
    """As `open`, but a symbolic link under this name, a pipe or a device is an OSError; links among folders are followed."""
    try:
        if not NO_FOLLOW and path.is_symlink():  # on Windows
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return open(path, mode, opener=lambda name, flags: open_regular(name, flags | NO_FOLLOW), **options)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed: remove it", str(path)) from None
        raise


def write_file(path: Path, content: bytes) -> None:
    with open_file(path, "wb") as file:
        file.write(content)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file, or a link, by a new file synced to disk. Atomic; on OSError the old file is kept."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.unlink(missing_ok=True)
        with open_file(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        patiently(os.replace, draft, path)
        sync(path.parent)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


BUSY_SECONDS = 5.0
"""How long a rename waits on Windows for the programs that have the file open."""


def rename(source: Path, target: Path) -> None:
    """Rename a file, which may replace another, or a folder, which may replace an empty one. Atomic. Raises OSError."""
    if sys.platform == "win32":
        if source.is_dir() and target.is_dir():
            target.rmdir()  # which only an empty one allows
        patiently(os.replace, source, target)
    else:
        patiently(os.rename, source, target)


def patiently(change: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    """Rename by `change`. Windows refuses it while any program reads the file, a virus scanner too: this waits for it."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            change(source, target)
            return
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > deadline:
                raise
        gc.collect()  # a model that nothing but itself refers to may still have it mapped
        time.sleep(0.02)


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk. Windows has no call for folders, and writes their entries itself."""
    if sys.platform == "win32" and path.is_dir():
        return
    # Windows syncs only what was opened for writing
    descriptor = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    with open_to_read(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_hash(path: Path) -> str | None:
    """SHA-256 of a file; None if it cannot be read."""
    try:
        return file_sha256(path)
    except OSError:
        return None


def sources_hash(root: Path) -> str:
    """SHA-256 over the paths and contents of all source files below `root`."""
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in SOURCES):
        total.update(f"{path.relative_to(root).as_posix()}\n{file_hash(path)}\n".encode())
    return total.hexdigest()


@cache
def own_sources() -> str:
    """The hash of this package's sources, as they were when first asked for."""
    return sources_hash(PACKAGE)


def others_can_write(path: Path) -> bool:
    """Whether another user, root aside, owns a file or folder or may write it; not known, so False, on Windows."""
    if sys.platform == "win32":  # a file has the access list of its folder, which lies in the user's profile by default
        return False
    found = path.stat()
    return not is_trusted(found.st_uid) or bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def is_trusted(owner: int) -> bool:
    """Whether a user is this one, or root, who could replace Python as well."""
    return owner in (user(), 0)


def user() -> int:
    """The number of this user; 0, which `stat` gives as the owner of every file, on Windows."""
    if sys.platform == "win32":
        return 0
    return os.geteuid()


def link_to(target: Path, link: Path) -> None:
    """Make a link to a file or folder; on Windows, where a symbolic link needs a privilege, one of another kind."""
    if sys.platform == "win32":
        windows.link_to(target, link)
    else:
        link.symlink_to(target)


def private_folder(path: Path) -> None:
    """Make a folder that no other user may write; this user's, if it exists and others may write it, is closed to them.

    Raises OSError, also if another user owns it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_trusted(path.stat().st_uid):
        raise PermissionError(errno.EPERM, "another user owns it", str(path))
    if others_can_write(path):
        path.chmod(0o700)


def refuse_links(folder: Path, below: Mapping[str, int] = MappingProxyType({})) -> None:
    """Raise ConfigError for a symbolic link, which would redirect writes and deletions.

    Checked are `folder` and, for each name of `below`, the folder of that name in it and so many levels of what it holds.
    """
    _refuse_links(folder, 0)
    for name, depth in below.items():
        _refuse_links(folder / name, depth)


def _refuse_links(path: Path, depth: int) -> None:
    if path.is_symlink():
        raise ConfigError(f"{path} is a symbolic link, which is not followed: remove it")
    if depth and path.is_dir():
        for each in path.iterdir():
            _refuse_links(each, depth - 1)
