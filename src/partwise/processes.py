"""The processes that this one starts: their groups, how they are asked to end, and what has ended them, on each system."""

import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from partwise import windows
from partwise.machine import is_alive

if TYPE_CHECKING:
    import asyncio.subprocess

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
    """Send a signal to a process started with OWN_GROUP; on Windows, where only Ctrl-Break reaches another process, that.

    Where Windows has no console to send it by, the process ends at once.
    """
    if process.poll() is not None:
        return
    with suppress(OSError):  # it has just ended
        if sys.platform == "win32":
            with suppress(SystemError):  # there is no console: Python has ended the process, and raises this
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


MAX_PAUSE = 0.02
"""Seconds between two looks at whether a process has ended."""


class ProcessGroup:
    """A process with all that it starts: on POSIX a session, on Windows a job.

    None of a job outlives this process. On Linux, the death of this process asks the started one to end.
    """

    peak_memory: int | None = None
    """Once it has ended: the most bytes that one process of it had in memory, of those whose end was waited for; None on
    Windows, and at least what this process has, from which it was forked."""

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

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._reap(os.WNOHANG) if sys.platform != "win32" else self.process.poll()

    def wait(self, seconds: float | None = None) -> int | None:
        """Its exit status, once it has ended; None if it still runs after so many seconds."""
        if sys.platform == "win32":
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            return self.process.poll()
        if seconds is None:
            return self._reap(0)
        deadline, pause = time.monotonic() + seconds, 0.0005
        while (status := self.poll()) is None and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(2 * pause, MAX_PAUSE)
        return status

    if sys.platform != "win32":

        def _reap(self, options: int) -> int | None:
            """As `Popen.wait`, by the call that tells what the process has used."""
            if self.process.returncode is None:
                process, status, usage = os.wait4(self.process.pid, options)
                if process:
                    self.process.returncode = os.waitstatus_to_exitcode(status)
                    self.peak_memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            return self.process.returncode

    def ask(self) -> None:
        """Ask it to end, if it still runs."""
        if sys.platform == "win32":
            send(self.process)
        elif self.poll() is None:
            signal_group(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it, and what it has left behind."""
        if sys.platform == "win32":
            self.job.end()
            with suppress(OSError):  # it ends by the job, unless it was not added
                self.process.kill()
        else:
            signal_group(self.process.pid, signal.SIGKILL)
        self.wait()


if sys.platform != "win32":

    def signal_group(group: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


class AsyncGroup:
    """A process of asyncio that was started with OWN_SESSION, with all that it starts: on Windows, from now on, a job."""

    def __init__(self, process: "asyncio.subprocess.Process") -> None:
        self.process = process
        if sys.platform == "win32":
            self.job = windows.Job()
            self.job.add(process.pid)

    def kill(self) -> None:
        """End it if it still runs, and with it what it has started."""
        if sys.platform == "win32":
            self.job.end()
            with suppress(ProcessLookupError):
                self.process.kill()
        elif self.process.returncode is None:
            signal_group(self.process.pid, signal.SIGKILL)
