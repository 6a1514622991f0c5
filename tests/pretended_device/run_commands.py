"""Runs the command lines on standard input in one process, which prints as JSON those that failed with their errors."""

import contextlib
import io
import json
import shlex
import sys
import traceback

from partwise.cli import main
from partwise.inspection import coordinate_check, lr_transfer


def run(words: list[str]) -> str | None:
    """What a command printed, with its traceback, if it failed."""
    sys.argv = ["partwise", *words]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            main()
        except SystemExit as end:
            return output.getvalue() if end.code else None
        except BaseException:
            return output.getvalue() + traceback.format_exc()
    return None


coordinate_check.WIDTHS = lr_transfer.WIDTHS = (16, 32)
failures = {line: run(shlex.split(line)) for line in sys.stdin.read().splitlines() if line}
print(json.dumps({line: error for line, error in failures.items() if error}))
