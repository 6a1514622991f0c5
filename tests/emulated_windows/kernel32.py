"""The functions of Windows' kernel32 that partwise calls, over processes of POSIX."""

import ctypes
import itertools
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ACCESS_DENIED, INVALID_PARAMETER = 5, 87
ENDED, TIMEOUT = 0, 0x102
KILL_ON_JOB_CLOSE = 0x2000


@dataclass
class Job:
    flags: int = 0
    members: list[int] = field(default_factory=list)

    def kill(self) -> None:
        for pid in self.members:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # each was started as the first of a group


class Function:
    """A function of a library, which ctypes gives types."""

    def __init__(self, call: Callable[..., int]) -> None:
        self.call = call

    def __call__(self, *args: Any) -> int:
        return self.call(*args)


class Kernel32:
    """Handles are numbers of processes, as objects of their own, and of jobs."""

    def __init__(self) -> None:
        self.error = 0
        self.handles: dict[int, int | Job] = {}
        self.numbers = itertools.count(4, 4)
        for name in [name for name in dir(self) if name[0].isupper()]:
            setattr(self, name, Function(getattr(self, name)))

    def _handle(self, of: int | Job) -> int:
        number = next(self.numbers)
        self.handles[number] = of
        return number

    def OpenProcess(self, rights: int, inherit: bool, pid: int) -> int:
        self.error = INVALID_PARAMETER
        try:
            os.kill(pid, 0)
        except PermissionError:
            self.error = ACCESS_DENIED
            return 0
        except (ProcessLookupError, OverflowError):
            return 0
        return self._handle(pid)

    def WaitForSingleObject(self, handle: int, milliseconds: int) -> int:
        pid = self.handles[handle]
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return ENDED
        return ENDED if state == "Z" else TIMEOUT

    def CloseHandle(self, handle: int) -> int:
        closed = self.handles.pop(handle)
        if isinstance(closed, Job) and closed.flags & KILL_ON_JOB_CLOSE:
            closed.kill()
        return 1

    def CreateJobObjectW(self, attributes: None, name: None) -> int:
        return self._handle(Job())

    def SetInformationJobObject(self, handle: int, kind: int, limits: Any, size: int) -> int:
        job, given = self.handles[handle], limits._obj
        assert isinstance(job, Job) and kind == 9 and size == ctypes.sizeof(given)
        job.flags = given.flags
        return 1

    def AssignProcessToJobObject(self, job: int, process: int) -> int:
        to, pid = self.handles[job], self.handles[process]
        assert isinstance(to, Job) and isinstance(pid, int)
        if self.WaitForSingleObject(process, 0) == ENDED:
            self.error = ACCESS_DENIED
            return 0
        to.members.append(pid)
        return 1

    def TerminateJobObject(self, handle: int, status: int) -> int:
        job = self.handles[handle]
        assert isinstance(job, Job)
        job.kill()
        return 1

    def GlobalMemoryStatusEx(self, status: Any) -> int:
        assert status._obj.size == ctypes.sizeof(status._obj)
        status._obj.total, status._obj.available, status._obj.available_commit = 16 << 30, 8 << 30, 4 << 30
        return 1

    def GetCurrentProcess(self) -> int:
        return -1

    def K32GetProcessMemoryInfo(self, handle: int, counters: Any, size: int) -> int:
        assert handle == -1 and counters._obj.size == size == ctypes.sizeof(counters._obj)
        counters._obj.peak_working_set = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return 1
