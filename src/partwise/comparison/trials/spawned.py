"""A process of trials that is no fork, `python -m partwise.comparison.trials.spawned EXECUTED_BY PARENT_PID`.

It imports what executes one kind of trials. Its request is a line of JSON on standard input: the folders of the trials, the
working directory and environment variables of its own. The end of standard input, or of its parent, asks it to save and
stop. Its statuses are left in the folder of the first trial.
"""

import json
import os
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from types import FrameType

from partwise.comparison.trials.execution import enter, execute_group, leave_standard_streams
from partwise.comparison.trials.job import EXECUTORS
from partwise.processes import ASKING, ask_this_process, has_parent

stopping = False

POLL_SECONDS = 1.0
"""How often it looks whether its parent is alive: another process may hold the stream of its request open."""


def stop(signum: int, frame: FrameType | None) -> None:
    global stopping
    stopping = True


def ask_at_end(requests: int) -> None:
    """Ask this process to stop once its standard input has ended."""
    while os.read(requests, 2**10):
        pass
    ask_this_process()


def ask_without(parent: int) -> None:
    """Ask this process to stop once its parent is dead."""
    while has_parent(parent):
        time.sleep(POLL_SECONDS)
    ask_this_process()


def read_line(requests: int) -> bytes:
    """The request; empty if the stream ends before it."""
    line = b""
    while not line.endswith(b"\n"):
        more = os.read(requests, 2**16)
        if not more:
            return b""
        line += more
    return line


def main() -> None:
    requests, _ = leave_standard_streams()
    parent = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent stops the runs in order
    import_module(EXECUTORS[sys.argv[1]])
    line = read_line(requests)
    if not line:
        os._exit(0)
    for number in ASKING:
        signal.signal(number, stop)
    for watch, source in ((ask_at_end, requests), (ask_without, parent)):
        threading.Thread(target=watch, args=(source,), daemon=True).start()
    folders, directory, variables = json.loads(line)
    code = 1
    try:
        enter(directory, variables)
        execute_group([Path(directory, folder) for folder in folders], lambda: stopping)
        code = 0
    finally:
        sys.stderr and sys.stderr.flush()
        os._exit(code)  # Python, at its end, would look for cycles in all of torch


if __name__ == "__main__":
    main()
