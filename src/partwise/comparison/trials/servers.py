"""Where the processes of trials on this machine come from: a server that forks them, or a new process for each.

A fork needs no import of torch, but on macOS one that is made after it may wait forever, and Windows has none. A server is
kept for the next comparison of a notebook or a study.
"""

import os
import sys

from partwise.comparison.trials.server import Server, context
from partwise.comparison.trials.spawner import Spawner
from partwise.config import ConfigError

START_METHOD = "PARTWISE_START_METHOD"
"""The environment variable for the way in which processes of trials start: `fork` or `spawn`, as in `multiprocessing`."""


def start_method() -> str:
    """`fork` or `spawn`. Raises ConfigError."""
    default = "spawn" if sys.platform in ("win32", "darwin") else "fork"
    method = os.environ.get(START_METHOD) or default
    if method not in ("fork", "spawn") or (method == "fork" and sys.platform == "win32"):
        known = "spawn" if sys.platform == "win32" else "fork or spawn"
        raise ConfigError(f"{START_METHOD}={method}: set it to {known}, or leave it out")
    return method


def start_server(executed_by: str) -> Server:
    """A server for one kind of trials, which imports what executes them in parallel with this process."""
    if sys.platform != "win32" and start_method() == "fork":
        from partwise.comparison.trials.forkserver import ForkServer

        return ForkServer(executed_by)
    return Spawner(executed_by)


_idle: list[Server] = []


def prestart(executed_by: str) -> None:
    """Start a server now, so that it imports while this process does; `take_server` returns it."""
    if not _idle:
        _idle.append(start_server(executed_by))


def take_server(executed_by: str) -> Server:
    """The idle server if its context is the current one, else a new one."""
    while _idle:
        server = _idle.pop()
        if server.context == context(executed_by) and not server.has_ended:
            return server
        server.end()
    return start_server(executed_by)


def give_back(server: Server) -> None:
    """Keep a server that runs no trials for the next comparison."""
    while _idle:
        _idle.pop().end()
    _idle.append(server)


def forget_servers() -> None:
    """In a forked child: the servers are its parent's."""
    _idle.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=forget_servers)
