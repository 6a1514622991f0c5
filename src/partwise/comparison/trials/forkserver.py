"""The parent's side of the fork server: one process that has imported everything and forks the workers of comparisons.

Like `multiprocessing`'s, it stays until this process ends: the next comparison of a notebook or a study uses it.
"""

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from partwise.files import PACKAGE, working_folder

END_SECONDS = 5.0
"""How long a server that runs no trials may take to end before it is killed."""

Reply = tuple[int, list[str] | None]
"""The number of a request and its runs' statuses; None if the server itself has ended."""


class ForkServer:
    """The process of `partwise.comparison.trials.worker`, which imports what runs trials in parallel with this process."""

    def __init__(self, executed_by: str) -> None:
        home = str(PACKAGE.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.context = context(executed_by)
        self.replies: queue.Queue[Reply] = queue.Queue()
        self.unanswered: set[int] = set()
        self.process = subprocess.Popen(
            # -P: modules of the working folder, which may hold files of other people, are not imported
            [sys.executable, "-P", "-m", "partwise.comparison.trials.worker", executed_by, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},  # the same package, however this process found it
            start_new_session=True,  # Ctrl-C reaches only the parent, which stops the runs in order
        )
        threading.Thread(target=self._listen, daemon=True).start()
        _servers.add(self)
        atexit.register(self.end)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            with self.process.stdout:
                for line in self.process.stdout:
                    number, statuses = json.loads(line)
                    self.unanswered.discard(number)
                    self.replies.put((number, statuses))
            self.process.wait()
        finally:
            self.replies.put((-1, None))

    def submit(self, number: int, folders: Sequence[Path], variables: Mapping[str, str] | None = None) -> None:
        """Execute the trials of `folders` in one process with these environment variables; the reply has the same number.

        The process works in the current working directory, which is the same for all trials that run at a time.
        """
        assert self.process.stdin is not None
        request = number, [str(folder) for folder in folders], str(working_folder()), dict(variables or {})
        self.unanswered.add(number)
        with contextlib.suppress(BrokenPipeError):  # `replies` reports that it has ended
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Ask running children to save and stop, and wait for them."""
        atexit.unregister(self.end)
        _servers.discard(self)
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
        if self.process.stdin and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        while True:
            try:
                self.process.wait(END_SECONDS)
                return
            except subprocess.TimeoutExpired:
                if not self.unanswered:
                    self.process.kill()

    def let_go(self) -> None:
        """In a forked child: close the inherited pipe, so that the server still sees its end."""
        atexit.unregister(self.end)
        assert self.process.stdin is not None
        # not `close`, which may wait for a lock that another thread held at the fork
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, self.process.stdin.fileno(), inheritable=False)
        os.close(devnull)


_idle: list[ForkServer] = []
_servers: set[ForkServer] = set()
"""The servers that have not ended."""


def let_go_of_servers() -> None:
    for server in _servers:
        server.let_go()
    _servers.clear()
    _idle.clear()


os.register_at_fork(after_in_child=let_go_of_servers)


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


def prestart(executed_by: str) -> None:
    """Start a server now, so that it imports while this process does; `take_server` returns it."""
    if not _idle:
        _idle.append(ForkServer(executed_by))


def take_server(executed_by: str) -> ForkServer:
    """The idle server if its context is the current one, else a new one."""
    while _idle:
        server = _idle.pop()
        if server.context == context(executed_by) and server.process.poll() is None:
            return server
        server.end()
    return ForkServer(executed_by)


def give_back(server: ForkServer) -> None:
    """Keep a server that runs no trials for the next comparison."""
    while _idle:
        _idle.pop().end()
    _idle.append(server)
