"""One process that has imported everything, of which each program of a comparison is a fork: seen from the parent."""

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import partwise

Answer = tuple[int, list[str] | None]
"""The number of a program and its runs' statuses; None where the process itself has ended."""


class ForkServer:
    """The process of `partwise.comparison.worker`. Made before torch is imported here, it imports at the same time."""

    def __init__(self) -> None:
        home = str(Path(partwise.__file__).parent.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.place = place()
        self.answers: queue.Queue[Answer] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "partwise.comparison.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},  # the package that runs here, however it was found
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the runs in order
        )
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.end)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            with self.process.stdout:
                for line in self.process.stdout:
                    number, statuses = json.loads(line)
                    self.answers.put((number, statuses))
            self.process.wait()
        finally:
            self.answers.put((-1, None))

    def train(self, number: int, folders: Sequence[Path]) -> None:
        """Have a program trained; its answer comes under its number."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `answers` says that it has ended
            self.process.stdin.write(json.dumps([number, [str(folder) for folder in folders]]) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Ask whatever still runs to save and stop, and wait for it."""
        atexit.unregister(self.end)
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
        if self.process.stdin and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()


_early: list[ForkServer] = []


def place() -> tuple[str, dict[str, str]]:
    """What a process takes over from its parent: where it stands, and the environment."""
    return os.getcwd(), dict(os.environ)


def start_early() -> None:
    """Have a server begin to import, for the comparison that will `take` it."""
    if not _early:
        _early.append(ForkServer())


def take() -> ForkServer:
    """A server: the one that was started early, where there is one and it stands where this process stands now."""
    while _early:
        server = _early.pop()
        if server.place == place():
            return server
        server.end()
    return ForkServer()
