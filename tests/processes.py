"""Whether processes that a test has started are gone."""

import time
from pathlib import Path

from partwise.machine import is_alive


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds; a zombie that its new parent has not reaped yet counts as ended."""
    for _ in range(200):
        if not is_alive(pid) or is_zombie(pid):
            return True
        time.sleep(0.05)
    return False


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):  # it has ended, or the system has no such files
        return False
