"""Signals that end a command: as Ctrl-C does, they let it save, and its exit status says which one it was."""

import atexit
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HANGUP: signal.Signals | None
"""The signal of a terminal that is closed, after which nothing can be written to it. Windows has none."""
ENDING: tuple[signal.Signals, ...]
"""The signals of job schedulers, of terminals that are closed and, on Windows, of Ctrl-Break."""

if sys.platform == "win32":
    HANGUP, ENDING = None, (signal.SIGTERM, signal.SIGBREAK)
else:
    HANGUP, ENDING = signal.SIGHUP, (signal.SIGTERM, signal.SIGHUP)

ended_by: list[int] = []
"""The signals that were handled by `terminate`; typer does not pass on the exception that ended a command."""

Handler = Callable[[int, FrameType | None], None]


class Terminated(KeyboardInterrupt):
    """A signal has asked the command to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def handled(handler: Handler, numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Call `handler` on these signals, except those that this process was told to ignore, as `nohup` does."""
    chosen = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in chosen}
    try:
        yield
    finally:
        for number, earlier in previous.items():
            signal.signal(number, earlier)


def terminate(number: int, frame: FrameType | None) -> None:
    """Raise Terminated."""
    ended_by.append(number)
    if number == HANGUP:
        leave_terminal()
    raise Terminated(number)


class TerminalOutput(io.FileIO):
    """Standard output or error on a terminal, which may be closed before its signal has come."""

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            leave_terminal()
            return len(content)


def outlive_terminal() -> None:
    """Ignore writes to a closed terminal, which would raise OSError before anything is saved.

    On Windows they raise none, and a file of its console could not write Unicode.
    """
    if sys.platform == "win32":
        return
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream.isatty():
            stream.flush()
            raw = io.BufferedWriter(TerminalOutput(stream.fileno(), "w", closefd=False))
            encoding, errors = stream.encoding, stream.errors
            setattr(sys, name, io.TextIOWrapper(raw, encoding, errors, line_buffering=True))


def leave_terminal() -> None:
    """Discard all later output: writing to a closed terminal is an error."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        if os.isatty(descriptor):
            os.dup2(null, descriptor)
    os.close(null)


def end_undisturbed() -> None:
    """Ignore Ctrl-C during interpreter shutdown: a traceback would change the exit status of finished work."""
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # runs before all that was registered earlier


def exit_status() -> int:
    """128 plus the number of the signal that ended the command: of Terminated if it was raised, else of Ctrl-C."""
    return 128 + (ended_by[0] if ended_by else signal.SIGINT)
