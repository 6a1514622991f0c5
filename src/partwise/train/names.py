"""The names and the ownership of run folders."""

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from partwise.config import ConfigError, digest


def run_name(name: str) -> str:
    """A name that is safe as a folder's. Raises ConfigError for separators, `..` and the like."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._=+,~@-]{0,119}", name) or ".." in name:
        raise ConfigError(
            f"--name {name!r}: a run's name starts with a letter or digit and holds no separator, space or '..'"
        )
    return name


def default_name(words: list[str]) -> str:
    """A folder's name from the words of a command."""
    text = "_".join(re.sub(r"[^A-Za-z0-9.=+-]+", "-", Path(word).name or word).strip("-.") for word in words)
    text = text.replace("..", "-").lstrip("._=+-") or "run"
    return run_name(text if len(text) <= 100 else f"{text[:90]}~{digest(words)[:8]}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk, or a folder that may not be written to, becomes one line. Raises ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror or error}; see to room and rights, and give the same command again: "
            "it continues from the last checkpoint"
        ) from None


class Lock:
    """One owner per folder, held as long as the process lives. Raises ConfigError while another process holds it."""

    def __init__(self, folder: Path) -> None:
        with writing(folder):
            self.file = (folder / ".lock").open("a+")
            try:
                fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.file.seek(0)
                owner = self.file.read().strip() or "unknown"
                self.file.close()
                raise ConfigError(
                    f"{folder} is in use by process {owner}: wait for it, stop it, or choose another --name"
                ) from None
            self.file.truncate(0)
            self.file.write(str(os.getpid()))
            self.file.flush()

    def release(self) -> None:
        self.file.close()
