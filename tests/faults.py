"""The faults that the checks of reliability put into runs: processes that can be killed, damaged bits, calls that fail."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

CALLS = ("open", "mkdir", "rename", "replace", "unlink", "fsync")


@contextmanager
def watched(
    names: Sequence[str], before: Callable[..., None], after: Callable[..., None] = lambda name, *arguments: None
) -> Iterator[None]:
    """Call `before(name, *arguments)` and `after(name, *arguments)` around these functions of `os`."""
    originals = {name: getattr(os, name) for name in names}

    def replacement(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            before(name, *arguments)
            result = originals[name](*arguments, **options)
            after(name, *arguments)
            return result

        return call

    try:
        for name in names:
            setattr(os, name, replacement(name))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


@contextmanager
def failing(at: int, code: int) -> Iterator[list[str]]:
    """Let call number `at` of `os` that opens, changes or syncs a file fail; yields the names of the calls made.

    The name of opening a file to read it is `read`, that of making a folder that exists `mkdir again`.
    """
    made: list[str] = []

    def count(name: str, *arguments: Any) -> None:
        reads = name == "open" and len(arguments) > 1 and not arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        again = name == "mkdir" and os.path.isdir(arguments[0])  # by a library that makes sure of it
        made.append("read" if reads else "mkdir again" if again else name)
        if len(made) - 1 == at:
            raise OSError(code, os.strerror(code))

    with watched(CALLS, count):
        yield made


def in_child(work: Callable[[], object]) -> int:
    """Start a process that does this work and ends without cleaning up."""
    process = os.fork()
    if process == 0:  # pragma: no cover
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return process


def seconds_of(work: Callable[[], object]) -> float:
    """The time that this work takes in a process of its own."""
    started = time.perf_counter()
    status = os.waitstatus_to_exitcode(os.waitpid(in_child(work), 0)[1])
    assert status == 0, f"the child ended with status {status}"
    return time.perf_counter() - started


def kill(work: Callable[[], object], seconds: float) -> bool:
    """Start this work in a process of its own and kill it after some seconds; returns whether it had ended by itself."""
    process = in_child(work)
    time.sleep(seconds)
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


def flip_bit(folder: Path, draw: random.Random) -> Path:
    """Flip one bit of a file below a folder; every file is as likely as any other."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return path
