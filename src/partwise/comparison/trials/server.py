"""What executes trials on this machine: its contract, and what its processes inherit."""

import os
import queue
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from partwise.files import PACKAGE

Reply = tuple[int, list[str] | None]
"""The number of a request and its runs' statuses; None if the server itself has ended."""


class Server(Protocol):
    """What executes trials, each group of them in a process."""

    context: tuple[object, ...]
    """What its processes inherit; see `context`."""
    replies: "queue.Queue[Reply]"

    @property
    def has_ended(self) -> bool: ...

    def submit(self, number: int, folders: Sequence[Path], variables: Mapping[str, str] | None = None) -> None:
        """Execute the trials of `folders` in one process with these environment variables; the reply has the same number.

        The process works in the current working directory, which is the same for all trials that run at a time.
        """

    def end(self) -> None:
        """Ask running processes to save and stop, and wait for them."""


def context(executed_by: str) -> tuple[object, ...]:
    """What the trials of a server inherit: another environment, umask or version of the code needs another server.

    pytest names the running test in the environment, which changes nothing.
    """
    mask = os.umask(0o077)  # there is no other way to read it
    os.umask(mask)
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return executed_by, environment, mask, sources(PACKAGE)


def sources(folder: str | os.PathLike[str]) -> list[tuple[str, int, int]]:
    """The files of the package with their times and sizes; their hash, which the ledger has, takes far longer."""
    found = []
    for entry in os.scandir(folder):
        if not entry.is_dir():
            found.append((entry.path, entry.stat().st_mtime_ns, entry.stat().st_size))
        elif entry.name != "__pycache__":
            found += sources(entry)
    return sorted(found)


def import_path() -> dict[str, str]:
    """The environment in which a process finds the same package, however this process found it."""
    path = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def let_go(descriptor: int) -> None:
    """In a forked child: close the copy of a stream, so that a process still sees the end of its parent's."""
    # not `close` of its file, which may wait for a lock that another thread held at the fork
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor, inheritable=False)
    os.close(devnull)
