"""Reading files that users name: only regular ones, only up to a bound, and text without a byte order mark."""

import codecs
import errno
import io
import os
import stat
from pathlib import Path

MAX_BYTES = 1 << 28
"""A larger file is refused where no other bound is given; configurations, values and records are far smaller."""

NO_WAIT = getattr(os, "O_NONBLOCK", 0)


def open_to_read(path: Path) -> io.BufferedReader:
    """As `open`, but raises OSError for a pipe or a device, which may never end."""
    return open(path, "rb", opener=open_regular)


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file. Raises OSError, also for a pipe, a device, and more bytes than the bound."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size <= max_bytes and len(content := file.read(max_bytes + 1)) <= max_bytes:
            return content
    raise OSError(errno.EFBIG, f"it has more than {max_bytes >> 20} MiB", str(path))


def decode_text(content: bytes, errors: str = "strict") -> str:
    """UTF-8 as text, without a byte order mark at its start. Raises UnicodeError, which names UTF-16."""
    check_not_utf16(content)
    return content.decode("utf-8-sig", errors)


def skip_mark(file: io.BufferedReader) -> int:
    """Move an open file behind its byte order mark, and return the bytes of the mark: 3, or 0 without one.

    Raises UnicodeError for UTF-16.
    """
    start = file.read(len(codecs.BOM_UTF8))
    check_not_utf16(start)
    if start == codecs.BOM_UTF8:
        return len(start)
    file.seek(0)
    return 0


def check_not_utf16(content: bytes) -> None:
    """Raises UnicodeError if a text starts with the byte order mark of UTF-16 (or UTF-32), which no UTF-8 starts with."""
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise UnicodeError("it is UTF-16: convert it to UTF-8")


def open_regular(name: str, flags: int) -> int:
    """An opener for `open` that accepts regular files only."""
    try:
        descriptor = os.open(name, flags | NO_WAIT, 0o666)  # opening a pipe would wait for its other end
    except PermissionError:
        if os.path.isdir(name):  # as Windows tells of a folder
            raise OSError(errno.EISDIR, "it is a folder", name) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        error = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(error, "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file", name)
    return descriptor
