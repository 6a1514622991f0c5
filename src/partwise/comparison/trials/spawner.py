"""Processes of trials that are no forks: each is a new one, and imports what it executes.

A process is asked to stop by the end of its standard input, which also comes when this process dies.
"""

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from partwise.comparison.trials.claims import TrialLock, current
from partwise.comparison.trials.execution import forget_error, group_statuses
from partwise.comparison.trials.server import Reply, context, import_path, let_go
from partwise.files import working_folder
from partwise.processes import OWN_SESSION

POLL_SECONDS = 1.0
"""Between two checks whether another worker has taken over the trials of a process."""


@dataclass(eq=False)
class Spawned:
    """A process of `partwise.comparison.trials.spawned`."""

    process: "subprocess.Popen[bytes]"
    asked: bool = False
    """Whether it was asked to stop."""
    closing: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def start(cls, executed_by: str) -> "Spawned":
        """Raises OSError."""
        # -P: modules of the working folder, which may hold files of other people, are not imported
        words = [sys.executable, "-P", "-m", "partwise.comparison.trials.spawned", executed_by, str(os.getpid())]
        started = cls(
            subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, bufsize=0, env=import_path(), **OWN_SESSION
            )
        )
        _spawned.add(started)
        return started

    def request(self, folders: Sequence[Path], variables: Mapping[str, str]) -> None:
        """Raises OSError if it has ended."""
        assert self.process.stdin is not None
        request = [str(folder) for folder in folders], str(working_folder()), dict(variables)
        self.process.stdin.write(f"{json.dumps(request)}\n".encode())

    def ask(self) -> None:
        """Ask it to save and stop."""
        assert self.process.stdin is not None
        with self.closing, suppress(OSError):
            self.asked = True
            self.process.stdin.close()

    def wait(self, claim: TrialLock | None) -> int:
        """Its exit status. It is asked to stop if another worker has taken over its trial while this one was suspended."""
        while True:
            try:
                return self.process.wait(POLL_SECONDS if claim else None)
            except subprocess.TimeoutExpired:
                if claim and claim.is_lost:
                    self.ask()

    def forget(self) -> None:
        _spawned.discard(self)
        self.ask()


class Spawner:
    """Starts a process for each group of trials, and the first one at once, so that it imports while this process does."""

    def __init__(self, executed_by: str) -> None:
        self.executed_by, self.context = executed_by, context(executed_by)
        self.replies: queue.Queue[Reply] = queue.Queue()
        self.running: dict[int, tuple[Spawned, threading.Thread]] = {}
        self.has_ended = False
        self._first: Spawned | None = Spawned.start(executed_by)
        atexit.register(self.end)

    def submit(self, number: int, folders: Sequence[Path], variables: Mapping[str, str] | None = None) -> None:
        places = [working_folder() / folder for folder in folders]
        try:
            forget_error(places)
            spawned, self._first = self._first or Spawned.start(self.executed_by), None
            with suppress(BrokenPipeError):  # its exit status says why
                spawned.request(folders, variables or {})
        except OSError as error:
            self.replies.put((number, [f"failed {error}"] * len(places)))
            return
        thread = threading.Thread(target=self._wait, args=(number, spawned, places), daemon=True)
        self.running[number] = spawned, thread
        thread.start()

    def _wait(self, number: int, spawned: Spawned, places: list[Path]) -> None:
        status = spawned.wait(current(places[0]))
        asked = spawned.asked
        spawned.forget()
        self.running.pop(number, None)
        self.replies.put((number, group_statuses(places, status, asked)))

    def end(self) -> None:
        atexit.unregister(self.end)
        self.has_ended = True
        if self._first:
            self._first.process.kill()  # it has nothing to save
            self._first.forget()
            self._first.process.wait()
        running = list(self.running.values())
        for spawned, _ in running:
            spawned.ask()
        for _, thread in running:
            while thread.is_alive():
                thread.join(POLL_SECONDS)  # without a bound, Ctrl-C could not interrupt it on Windows


_spawned: set[Spawned] = set()
"""The processes that have not ended."""


def let_go_of_processes() -> None:
    """In a forked child: they are its parent's."""
    for spawned in _spawned:
        if spawned.process.stdin and not spawned.process.stdin.closed:
            let_go(spawned.process.stdin.fileno())
    _spawned.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=let_go_of_processes)
