"""The functions of Windows that Python does not have: processes, jobs, memory, the processor's name, and links."""

import ctypes
import os
import stat
import sys
from ctypes import wintypes
from functools import cache
from pathlib import Path
from typing import Any

ACCESS_DENIED = 5
"""The error of opening a process of another user."""
SYNCHRONIZE, SET_QUOTA, TERMINATE = 0x100000, 0x100, 0x1
"""Rights to a process: to wait for it; the two that adding it to a job needs."""
WAIT_TIMEOUT = 0x102
EXTENDED_LIMITS, KILL_ON_JOB_CLOSE = 9, 0x2000

JOB_LIMITS = (
    ("per_process_time", ctypes.c_int64),
    ("per_job_time", ctypes.c_int64),
    ("flags", ctypes.c_uint32),
    ("minimum_working_set", ctypes.c_size_t),
    ("maximum_working_set", ctypes.c_size_t),
    ("active_processes", ctypes.c_uint32),
    ("affinity", ctypes.c_size_t),
    ("priority_class", ctypes.c_uint32),
    ("scheduling_class", ctypes.c_uint32),
    ("io_counters", ctypes.c_uint64 * 6),
    ("process_memory", ctypes.c_size_t),
    ("job_memory", ctypes.c_size_t),
    ("peak_process_memory", ctypes.c_size_t),
    ("peak_job_memory", ctypes.c_size_t),
)
MEMORY = (
    ("size", ctypes.c_uint32),
    ("load", ctypes.c_uint32),
    ("total", ctypes.c_uint64),
    ("available", ctypes.c_uint64),
    ("total_commit", ctypes.c_uint64),
    ("available_commit", ctypes.c_uint64),
    ("total_virtual", ctypes.c_uint64),
    ("available_virtual", ctypes.c_uint64),
    ("available_extended", ctypes.c_uint64),
)
COUNTERS = (
    ("size", ctypes.c_uint32),
    ("page_faults", ctypes.c_uint32),
    ("peak_working_set", ctypes.c_size_t),
    ("working_set", ctypes.c_size_t),
    ("quotas", ctypes.c_size_t * 4),
    ("pagefile", ctypes.c_size_t),
    ("peak_pagefile", ctypes.c_size_t),
)


class JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = JOB_LIMITS


class Memory(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = MEMORY


class Counters(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS."""

    _fields_ = COUNTERS


@cache
def kernel32() -> Any:
    """The system's library, with the types of the functions that take or return handles."""
    if sys.platform != "win32":
        raise NotImplementedError
    library = ctypes.WinDLL("kernel32", use_last_error=True)
    handle, number = wintypes.HANDLE, ctypes.c_uint32
    types: dict[str, tuple[Any, list[Any]]] = {
        "OpenProcess": (handle, [number, wintypes.BOOL, number]),
        "GetCurrentProcess": (handle, []),
        "WaitForSingleObject": (number, [handle, number]),
        "CloseHandle": (wintypes.BOOL, [handle]),
        "CreateJobObjectW": (handle, [ctypes.c_void_p, wintypes.LPCWSTR]),
        "SetInformationJobObject": (wintypes.BOOL, [handle, ctypes.c_int, ctypes.c_void_p, number]),
        "AssignProcessToJobObject": (wintypes.BOOL, [handle, handle]),
        "TerminateJobObject": (wintypes.BOOL, [handle, wintypes.UINT]),
        "GlobalMemoryStatusEx": (wintypes.BOOL, [ctypes.c_void_p]),
        "K32GetProcessMemoryInfo": (wintypes.BOOL, [handle, ctypes.c_void_p, number]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def last_error() -> int:
    """The number of the error of the last call in this thread."""
    if sys.platform != "win32":
        raise NotImplementedError
    return ctypes.get_last_error()


def is_alive(pid: int) -> bool:
    """Whether a process has this number and has not ended."""
    if pid >= 1 << 32:
        return False
    process = kernel32().OpenProcess(SYNCHRONIZE, False, pid)
    if not process:
        return last_error() == ACCESS_DENIED
    try:
        return bool(kernel32().WaitForSingleObject(process, 0) == WAIT_TIMEOUT)
    finally:
        kernel32().CloseHandle(process)


class Job:
    """Processes, and all that they start, which are ended together: by `end`, or when this process ends."""

    def __init__(self) -> None:
        self.handle = kernel32().CreateJobObjectW(None, None)
        limits = JobLimits(flags=KILL_ON_JOB_CLOSE)
        if not self.handle or not kernel32().SetInformationJobObject(
            self.handle, EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
        ):
            raise OSError(last_error(), "Windows made no job for the processes of a command")

    def add(self, pid: int) -> bool:
        """Add a process that its parent has not waited for; False if it has ended already."""
        process = kernel32().OpenProcess(SET_QUOTA | TERMINATE, False, pid)
        if not process:
            return False
        try:
            return bool(kernel32().AssignProcessToJobObject(self.handle, process))
        finally:
            kernel32().CloseHandle(process)

    def end(self) -> None:
        """End every process of the job at once. It takes no more processes."""
        if self.handle:
            kernel32().TerminateJobObject(self.handle, 1)
            kernel32().CloseHandle(self.handle)
            self.handle = None


def available_memory() -> int | None:
    """The bytes that new processes can use: of the memory, and of what Windows promises to provide."""
    found = Memory(size=ctypes.sizeof(Memory))
    if not kernel32().GlobalMemoryStatusEx(ctypes.byref(found)):
        return None
    return min(int(found.available), int(found.available_commit))


def peak_memory() -> int:
    """The largest memory in bytes that this process has had; 0 if Windows does not tell."""
    found = Counters(size=ctypes.sizeof(Counters))
    kernel32().K32GetProcessMemoryInfo(kernel32().GetCurrentProcess(), ctypes.byref(found), ctypes.sizeof(found))
    return int(found.peak_working_set)


def processor_name() -> str | None:
    """The name that the processor gives itself, from the registry."""
    if sys.platform != "win32":
        raise NotImplementedError
    import winreg

    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, r"HARDWARE\DESCRIPTION\System\CentralProcessor\0") as key:
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
    except OSError:
        return None


def link_to(target: Path, link: Path) -> None:
    """A link that every user may make: a junction to a folder, a second name of a file. Raises OSError."""
    if sys.platform != "win32":
        raise NotImplementedError
    if target.is_dir():
        import _winapi

        _winapi.CreateJunction(str(target), str(link))
    else:
        os.link(target, link)


def is_junction(entry: "os.DirEntry[str]") -> bool:
    if sys.platform != "win32":
        raise NotImplementedError
    return entry.stat(follow_symlinks=False).st_reparse_tag == stat.IO_REPARSE_TAG_MOUNT_POINT


def remove_junctions(folder: Path) -> None:
    """Remove the junctions in a folder, and leave what they lead to."""
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if is_junction(entry):
            os.rmdir(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            remove_junctions(Path(entry.path))
