"""Whether processes that a test has started are gone."""

import os
import time
from pathlib import Path


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds; a zombie that its new parent has not reaped yet counts as ended."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False
