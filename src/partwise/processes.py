"""The processes that this one starts: their groups, how they are asked to end, and what has ended them, on each system."""

import ctypes
import functools
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

from partwise import windows
from partwise.machine import is_alive

OWN_GROUP: dict[str, Any]
OWN_SESSION: dict[str, Any]
"""The options with which `subprocess.Popen` starts a process that a terminal's Ctrl-C does not reach; or, with the second,
nor the closing of the terminal, on POSIX."""

ASKING: tuple[signal.Signals, ...]
"""The signals by which `send` and `ask_this_process` ask a process to end."""

if sys.platform == "win32":
    OWN_GROUP = OWN_SESSION = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    ASKING = (signal.SIGTERM, signal.SIGBREAK)
else:
    OWN_GROUP, OWN_SESSION = {"process_group": 0}, {"start_new_session": True}
    ASKING = (signal.SIGTERM,)

EXCEPTIONS = range(0xC0000000, 0xD0000000)
"""The exit statuses of processes that Windows has ended for an exception, such as an access violation."""


def send(process: "subprocess.Popen[Any]", number: signal.Signals = signal.SIGTERM) -> None:
    """Send a signal to a process started with OWN_GROUP; on Windows, where only Ctrl-Break reaches another process, that."""
    if process.poll() is not None:
        return
    with suppress(OSError):  # it has just ended, or has no console
        if sys.platform == "win32":
            process.send_signal(signal.CTRL_BREAK_EVENT)
        else:
            process.send_signal(number)


def ask_this_process() -> None:
    """As if this process had received SIGTERM, from any of its threads."""
    if sys.platform == "win32":  # where `os.kill` ends it at once
        signal.raise_signal(signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


def has_parent(parent: int) -> bool:
    """Whether the process that has started this one, with the number `parent`, still runs."""
    return is_alive(parent) if sys.platform == "win32" else os.getppid() == parent


def end_with(parent: int) -> None:
    """On Linux, end this process by SIGTERM when `parent`, which has started it, dies; elsewhere, if it has died already."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a handler would continue and start a program
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if not has_parent(parent):  # it died before the request, which the kernel then ignores
        ask_this_process()


def ended_by(status: int) -> str | None:
    """The signal, or the exception of Windows, that has ended a process with this status; None if it ended by itself."""
    if status < 0:
        with suppress(ValueError):
            return signal.Signals(-status).name
        return f"signal {-status}"
    return f"exception 0x{status:08X}" if sys.platform == "win32" and status in EXCEPTIONS else None


class ProcessGroup:
    """A process with all that it starts: on POSIX a session, on Windows a job.

    None of a job outlives this process. On Linux, the death of this process asks the started one to end.
    """

    def __init__(self, words: list[str], **options: Any) -> None:
        """Raises OSError, and ValueError for words that no system takes."""
        if sys.platform == "win32":
            self.job = windows.Job()
            try:
                self.process = subprocess.Popen(words, **OWN_GROUP, **options)
            except BaseException:
                self.job.end()
                raise
            self.job.add(self.process.pid)
        else:
            self.process = subprocess.Popen(
                words, preexec_fn=functools.partial(end_with, os.getpid()), **OWN_SESSION, **options
            )

    def ask(self) -> None:
        """Ask it to end, if it still runs."""
        if sys.platform == "win32":
            send(self.process)
        elif self.process.poll() is None:
            signal_group(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it, and what it has left behind."""
        if sys.platform == "win32":
            self.job.end()
            with suppress(OSError):  # it ends by the job, unless it was not added
                self.process.kill()
        else:
            signal_group(self.process.pid, signal.SIGKILL)
        self.process.wait()


if sys.platform != "win32":

    def signal_group(group: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
