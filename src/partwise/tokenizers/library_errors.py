"""Errors and panics of Hugging Face's `tokenizers` library, as ConfigError."""

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from partwise.config import ConfigError

_LOCK = threading.RLock()
"""Standard error belongs to the whole process."""


@contextmanager
def library_errors(message: str) -> Iterator[None]:
    """Raise ConfigError with this message, which has the place `{}` for the reason, if the library fails.

    It raises Exception itself, and for a panic, such as a pattern that needs too many steps, a class derived from
    BaseException only.
    """
    try:
        with _without_panic_messages():
            yield
    except BaseException as error:
        if type(error) not in (Exception, ValueError, OverflowError) and not _is_panic(error):
            raise
        raise ConfigError(message.format(" ".join(str(error).split())[:200])) from None


def _is_panic(error: BaseException) -> bool:
    return type(error).__name__ == "PanicException"


@contextmanager
def _without_panic_messages() -> Iterator[None]:
    """Buffer standard error, and drop it after a panic: Rust prints the panic before it becomes an exception."""
    with _LOCK, ExitStack() as stack:
        try:
            buffer = stack.enter_context(tempfile.TemporaryFile(buffering=0))
            stderr = os.dup(2)
        except OSError:  # no folder for temporary files, or no standard error
            yield
            return
        os.dup2(buffer.fileno(), 2)
        panicked = False
        try:
            yield
        except BaseException as error:
            panicked = _is_panic(error)
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            if not panicked and buffer.tell():
                buffer.seek(0)
                os.write(2, buffer.read())
