"""Names, locks and write errors of run folders."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from partwise.config import ConfigError, digest
from partwise.config.reading import read_file
from partwise.files import open_file, write_file

if TYPE_CHECKING:
    from filelock import BaseFileLock

DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(1, 10))}
"""What names on Windows are devices, whatever follows a dot."""


def check_run_name(name: str, option: str = "--name") -> str:
    """Return `name` if it is safe as a folder name. Raises ConfigError for separators, `..` and the like."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+,~@-]{0,119}", name) or ".." in name:
        raise ConfigError(
            f"{option} {name!r}: start with a letter or digit, and use no separator, space or '..' (at most 120 characters)"
        )
    if sys.platform == "win32" and (name.endswith(".") or name.partition(".")[0].lower() in DEVICES):
        raise ConfigError(f"{option} {name!r}: Windows has no folder of this name: choose another")
    return name


def default_run_name(words: list[str]) -> str:
    """A run name from the words of a command."""
    text = "_".join(re.sub(r"[^A-Za-z0-9.=+-]+", "-", Path(word).name or word).strip("-.") for word in words)
    text = text.replace("..", "-").lstrip("._=+-") or "run"
    return check_run_name(text if len(text) <= 100 else f"{text[:90]}~{digest(words)[:8]}")


LONG_PATH = 248
"""From this length on, Windows makes no folder, and from 260 on no file, unless long paths are enabled."""


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError, such as a full disk or a missing permission, into a one-line ConfigError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link: the advice to remove it must name it, not the folder that holds it
            raise ConfigError(f"cannot write {error.filename or path}: {error.strerror}") from None
        longest = max(len(str(Path(str(name)).absolute())) for name in (path, error.filename or path))
        if sys.platform == "win32" and longest >= LONG_PATH:
            raise ConfigError(
                f"cannot write {error.filename or path}: its path has {longest} characters: use a folder with a shorter "
                "path, or enable long paths in Windows"
            ) from None
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}: check disk space and permissions, then run the same "
            "command again to resume"
        ) from None


IN_USE = "is in use by process"
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
LOCK, OWNER = ".lock", ".pid"
"""In a folder: the file that is locked, which some systems let no other process read, and the number of the process."""


class FolderLock:
    """An exclusive lock on a folder, released at the latest when the process ends.

    If another process holds it, raises ConfigError, or else waits with `wait`, for what takes a moment.
    """

    def __init__(self, folder: Path, wait: bool = False, option: str = "--name") -> None:
        with explain_write_errors(folder):
            open_file(folder / LOCK, "a", encoding="utf-8").close()  # refuses a link, a pipe and a device
            lock = lock_file(folder / LOCK, wait)
            if lock is None:
                pid = lock_owner(folder) or "unknown"
                raise ConfigError(f"{folder} {IN_USE} {pid}: wait for it, stop it, or choose another {option}")
            self.lock = lock
            self.process = os.getpid()
            write_file(folder / OWNER, str(self.process).encode())

    def release(self) -> None:
        if os.getpid() == self.process:  # a fork has a copy
            self.lock.release()


def lock_file(path: Path, wait: bool = False) -> "BaseFileLock | None":
    """A lock on the file `path`, which is created; None if another process holds it, unless it may `wait`.

    Raises ConfigError if the file system has no locks: filelock would then take the file itself for one, which outlives a
    process that is killed.
    """
    from filelock import FileLock, Timeout  # takes as long to import as a command's help

    lock = FileLock(str(path.absolute()), thread_local=False)
    try:
        if sys.platform != "win32":
            from fcntl import LOCK_UN, flock

            with open_file(path, "a", encoding="utf-8") as file:
                flock(file, LOCK_UN)
        lock.acquire(timeout=-1 if wait else 0)
    except Timeout:
        return None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise ConfigError(f"cannot lock {path}: its file system has no locks: choose a folder on another one") from None
    return lock


def lock_owner(folder: Path) -> int | None:
    """The number of the process that last locked a folder; None if there is none."""
    try:
        return int(read_file(folder / OWNER, 100))
    except (OSError, ValueError):
        return None
