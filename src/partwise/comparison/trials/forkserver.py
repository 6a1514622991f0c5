"""The parent's side of the fork server: one process that has imported everything and forks the workers of a comparison."""

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

import partwise

Reply = tuple[int, list[str] | None]
"""The number of a request and its runs' statuses; None if the server itself has ended."""


class ForkServer:
    """The process of `partwise.comparison.trials.worker`, which imports `module` in parallel with this process."""

    def __init__(self, module: str) -> None:
        home = str(Path(partwise.__file__).parent.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.context = module, *process_context()
        self.replies: queue.Queue[Reply] = queue.Queue()
        self.process = subprocess.Popen(
            # -P: modules of the working folder, which may hold files of other people, are not imported
            [sys.executable, "-P", "-m", "partwise.comparison.trials.worker", module, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},  # the same package, however this process found it
            start_new_session=True,  # Ctrl-C reaches only the parent, which stops the runs in order
        )
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.end)

    def _listen(self) -> None:
        assert self.process.stdout is not None
        try:
            with self.process.stdout:
                for line in self.process.stdout:
                    number, statuses = json.loads(line)
                    self.replies.put((number, statuses))
            self.process.wait()
        finally:
            self.replies.put((-1, None))

    def submit(self, number: int, folders: Sequence[Path], variables: Mapping[str, str] | None = None) -> None:
        """Execute the trials of `folders` in one process with these environment variables; the reply has the same number."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `replies` reports that it has ended
            self.process.stdin.write(
                json.dumps([number, [str(folder) for folder in folders], dict(variables or {})]) + "\n"
            )
            self.process.stdin.flush()

    def end(self) -> None:
        """Ask running children to save and stop, and wait for them."""
        atexit.unregister(self.end)
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
        if self.process.stdin and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()


_prestarted: list[ForkServer] = []


def process_context() -> tuple[str, dict[str, str]]:
    """The state that a child process inherits: working directory and environment."""
    return os.getcwd(), dict(os.environ)


def prestart(module: str) -> None:
    """Start a server now, so that it imports while this process does; `take_server` returns it."""
    if not _prestarted:
        _prestarted.append(ForkServer(module))


def take_server(module: str) -> ForkServer:
    """The prestarted server if it has the module, the current working directory and environment, else a new one."""
    while _prestarted:
        server = _prestarted.pop()
        if server.context == (module, *process_context()):
            return server
        server.end()
    return ForkServer(module)
