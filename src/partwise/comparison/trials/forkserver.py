"""The parent's side of the fork server: one process that has imported everything and forks the workers of comparisons.

Like `multiprocessing`'s, it stays until this process ends.
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

from partwise.comparison.trials.server import Reply, context, import_path, let_go
from partwise.files import working_folder

if sys.platform == "win32":
    raise ImportError("Windows has no forks: see spawner.py")

END_SECONDS = 5.0
"""How long a server that runs no trials may take to end before it is killed."""


class ForkServer:
    """The process of `partwise.comparison.trials.worker`, which imports what runs trials in parallel with this process."""

    def __init__(self, executed_by: str) -> None:
        self.context = context(executed_by)
        self.replies: queue.Queue[Reply] = queue.Queue()
        self.unanswered: set[int] = set()
        self.process = subprocess.Popen(
            # -P: modules of the working folder, which may hold files of other people, are not imported
            [sys.executable, "-P", "-m", "partwise.comparison.trials.worker", executed_by, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=import_path(),
            start_new_session=True,  # Ctrl-C reaches only the parent, which stops the runs in order
        )
        threading.Thread(target=self._listen, daemon=True).start()
        _servers.add(self)
        atexit.register(self.end)

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

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
        assert self.process.stdin is not None
        request = number, [str(folder) for folder in folders], str(working_folder()), dict(variables or {})
        self.unanswered.add(number)
        with contextlib.suppress(BrokenPipeError):  # `replies` reports that it has ended
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()

    def end(self) -> None:
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
        """In a forked child: the server is its parent's."""
        atexit.unregister(self.end)
        assert self.process.stdin is not None
        let_go(self.process.stdin.fileno())


_servers: set[ForkServer] = set()
"""The servers that have not ended."""


def let_go_of_servers() -> None:
    for server in _servers:
        server.let_go()
    _servers.clear()


os.register_at_fork(after_in_child=let_go_of_servers)
