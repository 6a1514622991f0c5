"""Reading files that users name: only regular ones, and only up to a bound."""

import errno
import io
import os
import stat
from pathlib import Path

MAX_BYTES = 1 << 28
"""A larger file is refused where no other bound is given; configurations, values and records are far smaller."""

NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def open_to_read(path: Path) -> io.BufferedReader:
    """As `open`, but a pipe or a device, whose content may never end, is an OSError."""
    return open(path, "rb", opener=open_regular)


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file. Raises OSError, also for a pipe, a device, and more bytes than the bound."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size <= max_bytes and len(content := file.read(max_bytes + 1)) <= max_bytes:
            return content
    raise OSError(errno.EFBIG, f"it has more than {max_bytes >> 20} MiB", str(path))


def open_regular(name: str, flags: int) -> int:
    """An opener for `open` that refuses what is no regular file."""
    descriptor = os.open(name, flags | NO_WAIT, 0o666)  # opening a pipe would wait for its other end
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        error = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(error, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file", name)
    return descriptor
