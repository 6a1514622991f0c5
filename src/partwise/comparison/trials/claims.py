"""Claims: which worker runs a trial, where several processes or machines see the same folder.

A claim is a file `claim-N.json` that only one process can create; the one with the highest N counts. Its owner touches it
every few seconds. If it is not for `EXPIRES` seconds, its owner is dead or has released it, and the worker that creates
`claim-(N+1).json` has the trial: no claim is ever removed or renamed, so two workers cannot both succeed. Times are those of
the file system, so that the clocks of the machines do not matter.
"""

import contextlib
import json
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

EXPIRES = 60.0
HEARTBEAT = 5.0
"""Seconds between two touches of a claim."""


@dataclass(frozen=True)
class TrialLock:
    """A claim of this process on the trial in `folder`."""

    folder: Path
    number: int

    @property
    def path(self) -> Path:
        return path_of(self.folder, self.number)

    @property
    def is_lost(self) -> bool:
        """Whether another worker has taken the trial since."""
        return path_of(self.folder, self.number + 1).exists()

    def touch(self) -> bool:
        """Show that its owner lives; False if another worker has taken the trial since."""
        if self.is_lost:
            return False
        with contextlib.suppress(OSError):
            os.utime(self.path)
        return True

    def release(self) -> None:
        """Let another worker take the trial at once."""
        with contextlib.suppress(OSError):
            os.utime(self.path, (0, 0))


def claim(folder: Path, expires: float = EXPIRES) -> TrialLock | None:
    """Claim a trial; None if another worker has it."""
    number = latest(folder)
    if number is not None and is_alive(path_of(folder, number), expires):
        return None
    mine = TrialLock(folder, 0 if number is None else number + 1)
    try:
        descriptor = os.open(mine.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return None
    with os.fdopen(descriptor, "wb") as file:
        file.write(json.dumps({"host": platform.node(), "pid": os.getpid()}).encode())
    return mine


def path_of(folder: Path, number: int) -> Path:
    return folder / f"claim-{number}.json"


def latest(folder: Path) -> int | None:
    """The number of the claim that counts; None without one."""
    names = [path.stem.removeprefix("claim-") for path in folder.glob("claim-*.json")]
    return max((int(name) for name in names if name.isdecimal()), default=None)


def is_claimed(folder: Path, expires: float = EXPIRES) -> bool:
    number = latest(folder)
    return number is not None and is_alive(path_of(folder, number), expires)


def is_alive(path: Path, expires: float) -> bool:
    """Whether a file was touched within `expires` seconds, by the clock of its file system."""
    try:
        touched = path.stat().st_mtime
    except OSError:
        return False
    return now(path.parent) - touched < expires


def now(folder: Path) -> float:
    """The time by the clock of a folder's file system; by that of this machine if nothing can be written there."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:  # which no process that is killed leaves
            return os.fstat(probe.fileno()).st_mtime
    except OSError:
        return time.time()


def current(folder: Path) -> TrialLock | None:
    """The claim that counts; None if no worker has ever claimed the trial."""
    number = latest(folder)
    return None if number is None else TrialLock(folder, number)
