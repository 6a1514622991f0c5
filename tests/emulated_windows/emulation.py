"""Windows as the modules of partwise meet it, on Linux: what Windows lacks is gone, and what it refuses is refused.

For these modules only, `sys.platform` is win32; modules, functions and signals of POSIX are gone; `os.kill` ends a process
at once; a symbolic link needs a privilege; an open or mapped file cannot be renamed or removed, nor its folder; a folder
cannot be opened; only what was opened for writing can be synced; text is opened with an encoding; a locked file cannot be
read; processes are started without POSIX's options, and end with statuses as there.
"""

import builtins
import errno
import fcntl
import importlib.machinery
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel32 import Kernel32

PACKAGE = str(Path(__file__).parents[2] / "src" / "partwise") + os.sep
MISSING = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "crypt"}
GONE = {
    "os": """fork forkpty register_at_fork wait wait3 wait4 waitid waitpid WNOHANG WIFEXITED WIFSIGNALED WEXITSTATUS WTERMSIG
        killpg getpgid getpgrp setpgid setsid getsid geteuid getuid getegid getgid setuid setgid chown lchown fchown fchmod
        fchdir uname sched_getaffinity sched_setaffinity statvfs fstatvfs mkfifo mknod nice openpty ctermid ttyname sysconf
        confstr getloadavg set_blocking posix_fadvise posix_fallocate posix_spawn pread pwrite sendfile sync chroot
        O_NOFOLLOW O_NONBLOCK O_DIRECTORY O_CLOEXEC""",
    "signal": """SIGHUP SIGKILL SIGQUIT SIGCHLD SIGBUS SIGSTOP SIGCONT SIGTSTP SIGUSR1 SIGUSR2 SIGALRM SIGPIPE SIGTTIN SIGTTOU
        alarm setitimer getitimer pause pthread_kill pthread_sigmask sigwait siginterrupt""",
}
BREAK = signal.SIGUSR2
"""Stands for SIGBREAK: it ends a process that does not handle it."""
NEW_GROUP = 0x200
PRIVILEGE = 1314
KILLED, EXCEPTIONS = 1, {-BREAK: 0xC000013A, -signal.SIGSEGV: 0xC0000005, -signal.SIGABRT: 3}


class Proxy(types.ModuleType):
    """A module without some names and with others; all else is the module's own, also what a test has patched."""

    def __init__(self, module: types.ModuleType, gone: Sequence[str] = (), **given: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update(_module=module, _gone=frozenset(gone), _given=given, _patched={})

    def __getattr__(self, name: str) -> Any:
        if name in self._patched:
            return self._patched[name]
        if name in self._gone:
            raise AttributeError(f"Windows has no {self.__name__}.{name}")
        return self._given[name] if name in self._given else getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._patched[name] = value

    def __delattr__(self, name: str) -> None:
        del self._patched[name]


def refuse_open(path: str) -> None:
    """Raise PermissionError if this process has the file open or mapped, or one in the folder."""
    path = os.path.realpath(path)
    held = {os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    with open("/proc/self/maps", encoding="utf-8") as file:
        held |= {line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count("/")}
    if any(each == path or each.startswith(path + os.sep) for each in held):
        raise PermissionError(errno.EACCES, f"another process uses it: {sorted(held)}", path)


def kill(pid: int, number: int) -> None:
    assert number != 0, "os.kill(pid, 0) ends the process on Windows"
    os.kill(pid, signal.SIGKILL)


def rename(source: Any, target: Any) -> None:
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "it exists", str(target))
    os.rename(source, target)


def replace(source: Any, target: Any) -> None:
    if os.path.isdir(target):
        raise PermissionError(errno.EACCES, "it is a folder", str(target))
    os.replace(source, target)


def rmdir(path: Any) -> None:
    os.unlink(path) if os.path.islink(path) else os.rmdir(path)


def open_descriptor(path: Any, flags: int, *mode: int) -> int:
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "it is a folder", str(path))
    return os.open(path, flags, *mode)


def fsync(descriptor: int) -> None:
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "it was not opened for writing")
    os.fsync(descriptor)


def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
    assert "b" in mode or options.get("encoding"), f"{file} is opened as text in the encoding of the system"
    return open(file, mode, *args, **options)


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    def __init__(self, *args: Any, creationflags: int = 0, **options: Any) -> None:
        if options.get("preexec_fn") is not None or options.get("pass_fds"):
            raise ValueError("preexec_fn and pass_fds are not supported on Windows")
        for name in ("start_new_session", "process_group"):  # which Windows ignores
            options.pop(name, None)
        super().__init__(*args, start_new_session=bool(creationflags & NEW_GROUP), **options)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            if number == BREAK:
                os.killpg(self.pid, BREAK)
            elif number == signal.SIGTERM:
                os.kill(self.pid, signal.SIGKILL)
            else:
                raise ValueError(f"Unsupported signal: {number}")

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    terminate = kill

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "returncode" and value is not None and value < 0:
            value = EXCEPTIONS.get(value, KILLED)
        super().__setattr__(name, value)


def run(*words: Any, **options: Any) -> Any:
    options.pop("start_new_session", None)
    return subprocess.run(*words, **options)


class Registry(types.ModuleType):
    """winreg, which knows the processor's name."""

    HKEY_LOCAL_MACHINE = 0

    def OpenKey(self, root: int, path: str) -> Any:
        assert path == r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
        return open(os.devnull, encoding="utf-8")

    def QueryValueEx(self, key: object, name: str) -> tuple[str, int]:
        return "An Emulated Processor  ", 1


class Internal(types.ModuleType):
    """_winapi."""

    def CreateJunction(self, target: str, link: str) -> None:
        with_privilege(os.symlink, target, link, target_is_directory=True)


allowed = False


def with_privilege(call: Callable[..., None], *args: Any, **options: Any) -> None:
    global allowed
    allowed = True
    try:
        call(*args, **options)
    finally:
        allowed = False


kernel32 = Kernel32()
ctypes = importlib.import_module("ctypes")
MODULES: dict[str, types.ModuleType] = {
    "os": Proxy(
        os,
        GONE["os"].split(),
        kill=kill,
        rename=rename,
        replace=replace,
        rmdir=rmdir,
        open=open_descriptor,
        fsync=fsync,
        name="nt",
    ),
    "signal": Proxy(signal, GONE["signal"].split(), SIGBREAK=BREAK, CTRL_BREAK_EVENT=BREAK),
    "sys": Proxy(sys, platform="win32"),
    "subprocess": Proxy(subprocess, Popen=Popen, run=run, CREATE_NEW_PROCESS_GROUP=NEW_GROUP),
    "ctypes": Proxy(ctypes, WinDLL=lambda *_, **__: kernel32, get_last_error=lambda: kernel32.error),
    "winreg": Registry("winreg"),
    "_winapi": Internal("_winapi"),
}


def import_module(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    if name in MISSING:
        raise ModuleNotFoundError(f"No module named {name!r}: Windows has none", name=name)
    if name in MODULES and isinstance(MODULES[name], Proxy):
        __import__(name, globals, locals, fromlist, level)  # also of its own modules
    return MODULES[name] if name in MODULES else __import__(name, globals, locals, fromlist, level)


BUILTINS: Mapping[str, Any] = {**vars(builtins), "__import__": import_module, "open": open_file}


class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = BUILTINS
        super().exec_module(module)
        if module.__name__ == "partwise.windows":
            module.is_junction = os.DirEntry.is_symlink  # type: ignore[attr-defined]


class Finder:
    """Loads the modules of partwise with these imports."""

    @staticmethod
    def find_spec(name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] != "partwise":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


def is_ours() -> bool:
    """Whether a module of partwise makes this call, by itself or through a library."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return True
        if "site-packages" in name:  # a library may know Windows better than this does
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False


def watch(event: str, args: Sequence[Any]) -> None:
    """Refuse what Windows refuses, whoever makes the call for a module of partwise."""
    if event == "os.symlink" and not allowed and is_ours():
        raise OSError(errno.EPERM, f"[WinError {PRIVILEGE}] a required privilege is not held", str(args[1]))
    if event in ("os.rename", "os.remove", "os.rmdir") and is_ours():
        for path in args[: 2 if event == "os.rename" else 1]:
            if args[-1] == -1 and isinstance(path, str | os.PathLike):  # else relative to a folder, by shutil.rmtree
                refuse_open(os.fspath(path))
    if event == "open" and str(args[0]).endswith(".lock") and args[2] & os.O_ACCMODE == os.O_RDONLY and is_ours():
        raise PermissionError(errno.EACCES, "another process has locked it", args[0])
    if event == "os.fork" and is_ours():
        raise AssertionError("Windows has no fork")


def install() -> None:
    """From now on, modules of partwise are imported as on Windows, here and in every process that this one starts."""
    sys.meta_path.insert(0, Finder())
    sys.addaudithook(watch)
    words = sys.orig_argv
    if "-m" in words and words[words.index("-m") + 1].partition(".")[0] == "partwise":
        vars(sys.modules["__main__"])["__builtins__"] = BUILTINS
    folder = str(Path(__file__).parent)
    path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in path:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, path)])
