"""The server of comparisons' worker processes, `python -m partwise.comparison.trials.worker EXECUTED_BY PARENT_PID`.

It imports what executes one kind of trials, with torch if they need it, and forks a child per group of trials, so that each
group has its own memory and its runs report its peak.

A request is a line of JSON on standard input: a number, the folders of the trials that one child executes, the working
directory, and environment variables of its own, such as the GPUs it may use. The `job.json` of each folder names what
executes it: a module with a function `execute(folders, should_stop) -> statuses`. The reply is a line with the number and
the statuses once the child has ended. There is no other communication; progress is read from files of the trials.
"""

import contextlib
import gc
import json
import os
import selectors
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType

from partwise.comparison.trials.claims import TrialLock, current
from partwise.comparison.trials.execution import (
    enter,
    execute_group,
    forget_error,
    group_statuses,
    leave_standard_streams,
)
from partwise.comparison.trials.job import EXECUTORS
from partwise.machine import is_alive

if sys.platform == "win32":
    raise ImportError("Windows has no forks: see spawned.py")

stopping = False

POLL_SECONDS = 1.0
"""How often the server looks whether its parent is alive: another process may hold the stream of requests open."""


def stop(signum: int, frame: FrameType | None) -> None:
    global stopping
    stopping = True


class ChildProcesses:
    """The forked training processes."""

    def __init__(self, replies: int, parent: int) -> None:
        self.replies, self.parent = replies, parent
        self.running: dict[int, tuple[int, list[Path]]] = {}
        self.claims: dict[int, TrialLock] = {}
        """By child process id; empty unless workers share the trials."""

    def fork(self, number: int, folders: list[Path], directory: str, variables: dict[str, str]) -> None:
        """Start a child, or reply why that is not possible."""
        places, server = [Path(directory, folder) for folder in folders], os.getpid()
        try:
            forget_error(places)
            child = os.fork()
        except OSError as error:
            self.reply(number, [f"failed {error}"] * len(folders))
            return
        if child == 0:
            code = 1
            try:
                enter(directory, variables)
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                # it stops if it is asked to, or if this process or its parent dies
                execute_group(places, lambda: stopping or os.getppid() != server or not is_alive(self.parent))
                code = 0
            finally:
                os._exit(code)  # never return into the server's loop
        self.running[child] = number, places
        if claim := current(places[0]):
            self.claims[child] = claim

    def reply(self, number: int, statuses: list[str]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the parent was killed
            os.write(self.replies, f"{json.dumps([number, statuses])}\n".encode())

    def report_finished(self) -> None:
        """Reply for every child that has ended."""
        for child, (number, folders) in list(self.running.items()):
            ended, code = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            del self.running[child]
            self.claims.pop(child, None)
            self.reply(number, group_statuses(folders, os.waitstatus_to_exitcode(code)))

    def stop_lost(self) -> None:
        """Stop the children with trials that another worker has taken over while this process was suspended."""
        for child, claim in self.claims.items():
            if claim.is_lost:
                os.kill(child, signal.SIGTERM)

    def stop(self) -> None:
        """Send SIGTERM to every child again: one being forked when the signal arrived missed it."""
        for child in self.running:
            os.kill(child, signal.SIGTERM)


def main() -> None:
    requests, replies = leave_standard_streams()
    import_module(EXECUTORS[sys.argv[1]])
    wakeup_read, wakeup_write = os.pipe()
    for end in (wakeup_read, wakeup_write):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)  # wakes on SIGCHLD and SIGTERM
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent stops the runs in order
    children, accepting, unread = ChildProcesses(replies, int(sys.argv[2])), True, b""
    with selectors.DefaultSelector() as selector:
        for source in (requests, wakeup_read):
            selector.register(source, selectors.EVENT_READ)
        while accepting or children.running:
            ready = {key.fd for key, _ in selector.select(POLL_SECONDS)}
            if wakeup_read in ready:
                os.read(wakeup_read, 2**16)
            if requests in ready:
                more = os.read(requests, 2**16)
                *lines, unread = (unread + more).split(b"\n")
                for line in lines:
                    number, folders, directory, variables = json.loads(line)
                    children.fork(number, [Path(folder) for folder in folders], directory, variables)
                if not more:  # the parent has closed the stream or died, and may be a zombie, which looks alive
                    selector.unregister(requests)
                    accepting = False
            if stopping or os.getppid() != children.parent:
                accepting = False
            if not accepting:
                children.stop()
            children.stop_lost()
            children.report_finished()
    gc.freeze()  # else Python, at its end, looks for cycles in all of torch, and the comparison waits for it


if __name__ == "__main__":
    main()
