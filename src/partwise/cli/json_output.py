"""Standard output while a command prints JSON: nothing else is written to it, whatever runs."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from partwise.console import console


class JsonOutput:
    """Standard output while it is for JSON alone: `sys.stdout` and its descriptor are those of standard error."""

    def __init__(self) -> None:
        self.stdout = sys.stdout
        try:
            self.is_file = sys.stdout.fileno() == 1
        except OSError:  # a stream in memory
            self.is_file = False
        self.file = self.stdout
        if self.is_file:  # processes of a user's code, and C, write to the descriptor
            sys.stdout.flush()
            self.file = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
            os.dup2(2, 1)
        sys.stdout = self.stderr = sys.stderr
        console.soft_wrap = not sys.stderr.isatty()

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.file.flush()
        if self.is_file:
            os.dup2(self.file.fileno(), 1)
            with suppress(BrokenPipeError):
                self.file.close()
        if sys.stdout is self.stderr:
            sys.stdout = self.stdout
            console.soft_wrap = not sys.stdout.isatty()


_json: JsonOutput | None = None


@contextmanager
def only_json() -> Iterator[None]:
    """Send everything else to standard error, also what code of the user prints: standard output is for JSON."""
    global _json
    _json = JsonOutput()
    try:
        yield
    finally:
        end_json()


def end_json() -> None:
    """Let standard output be for everything again, as at the end of a command."""
    global _json
    if _json:
        _json.end()
    _json = None


def json_output() -> TextIO:
    """The file that JSON is written to: standard output."""
    return _json.file if _json else sys.stdout
