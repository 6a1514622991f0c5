"""The faults that the checks of reliability put into runs: processes that can be killed, damaged bits, calls that fail."""

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CALLS = ("open", "mkdir", "rename", "replace", "unlink", "fsync")


@contextmanager
def failing(at: int, code: int) -> Iterator[list[str]]:
    """Let call number `at` of `os` that opens, changes or syncs a file fail; yields the names of the calls made."""
    made: list[str] = []
    originals = {name: getattr(os, name) for name in CALLS}

    def replacement(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            made.append(name)
            if len(made) - 1 == at:
                raise OSError(code, os.strerror(code))
            return originals[name](*arguments, **options)

        return call

    try:
        for name in CALLS:
            setattr(os, name, replacement(name))
        yield made
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


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


def flip_bit(folder: Path, draw: random.Random) -> Path:
    """Flip one bit of a file below a folder; every file is as likely as any other."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return path
