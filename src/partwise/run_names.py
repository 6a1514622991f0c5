"""Names, locks and write errors of run folders."""

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partwise.config import ConfigError, digest
from partwise.files import open_file


def check_run_name(name: str) -> str:
    """Return `name` if it is safe as a folder name. Raises ConfigError for separators, `..` and the like."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+,~@-]{0,119}", name) or ".." in name:
        raise ConfigError(
            f"--name {name!r}: start with a letter or digit, and use no separator, space or '..' (at most 120 characters)"
        )
    return name


def default_run_name(words: list[str]) -> str:
    """A run name from the words of a command."""
    text = "_".join(re.sub(r"[^A-Za-z0-9.=+-]+", "-", Path(word).name or word).strip("-.") for word in words)
    text = text.replace("..", "-").lstrip("._=+-") or "run"
    return check_run_name(text if len(text) <= 100 else f"{text[:90]}~{digest(words)[:8]}")


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an OSError, such as a full disk or a missing permission, into a one-line ConfigError."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link: the advice to remove it must name it, not the folder that holds it
            raise ConfigError(f"cannot write {error.filename or path}: {error.strerror}") from None
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}: check disk space and permissions, then run the same "
            "command again to resume"
        ) from None


IN_USE = "is in use by process"


class FolderLock:
    """An exclusive lock on a folder, released at the latest when the process ends.

    If another process holds it, raises ConfigError, or else waits with `wait`, for what takes a moment.
    """

    def __init__(self, folder: Path, wait: bool = False) -> None:
        with explain_write_errors(folder):
            self.file = open_file(folder / ".lock", "a+")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                self.file.seek(0)
                pid = self.file.read().strip() or "unknown"
                self.file.close()
                raise ConfigError(f"{folder} {IN_USE} {pid}: wait for it, stop it, or choose another --name") from None
            self.owner = os.getpid()
            self.file.truncate(0)
            self.file.write(str(os.getpid()))
            self.file.flush()

    def release(self) -> None:
        if not self.file.closed and os.getpid() == self.owner:
            fcntl.flock(self.file, fcntl.LOCK_UN)  # closing it is not enough if a fork has a copy
        self.file.close()
