"""`--processes N`: start the processes of a run on this machine, pass on signals, and say which one failed.

The first process has the terminal; the others write to `ranks/` in the run's folder. On several machines, use torchrun.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from partwise.config import ConfigError
from partwise.train.distributed.environment import STORE, timeout_seconds

LOST, TOGETHER = 75, 76
"""Exit statuses of a process that lost another one, and of one that ends because another failed, which says why."""
GRACE_SECONDS = 10.0
"""The time that the others have to end by themselves after one has failed, before they are killed."""


def launch(n: int, words: list[str], signals: tuple[signal.Signals, ...]) -> int:
    """Run `partwise WORDS` in `n` processes; returns the exit status. Raises ConfigError if one died or did not answer."""
    timeout_seconds()  # raises for an invalid one
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="partwise-") as folder:
        threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // n)))
        sizes = {"WORLD_SIZE": str(n), "LOCAL_WORLD_SIZE": str(n), "OMP_NUM_THREADS": threads}
        shared = {**os.environ, **sizes, STORE: str(Path(folder) / "store")}
        children = [
            subprocess.Popen(
                [sys.executable, "-P", "-m", "partwise", *words],
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                process_group=0,  # a terminal's Ctrl-C reaches this process alone, which passes it on
            )
            for rank in range(n)
        ]

        def forward(number: int, frame: FrameType | None) -> None:
            for child in children:
                if child.poll() is None:
                    child.send_signal(number)

        earlier = {each: signal.signal(each, forward) for each in signals if signal.getsignal(each) != signal.SIG_IGN}
        try:
            return wait(children)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
            for each, handler in earlier.items():
                signal.signal(each, handler)


def wait(children: list["subprocess.Popen[bytes]"]) -> int:
    """The exit status of all; if one fails, the others have GRACE_SECONDS to end by themselves. Raises ConfigError."""
    failed_at: float | None = None
    while any(child.poll() is None for child in children):
        if failed_at is None and any(child.returncode for child in children):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS:
            break
        time.sleep(0.05)
    statuses = [child.poll() for child in children]
    for rank, status in enumerate(statuses):
        if status is not None and status < 0:
            reason = " (out of memory?)" if status == -signal.SIGKILL else ""
            raise ConfigError(
                f"rank {rank} was ended by {signal.Signals(-status).name}{reason}: run the same command again to resume "
                "from the last checkpoint"
            )
    if statuses[0] not in (None, 0, LOST, TOGETHER):
        return statuses[0]  # it has said why
    for rank, status in enumerate(statuses):
        if status not in (None, 0, LOST, TOGETHER) and LOST in statuses:
            raise ConfigError(f"rank {rank} ended with status {status}: ranks/{rank}.log in the run's folder says why")
    if None in statuses or LOST in statuses:
        silent = statuses.index(None) if None in statuses else None
        name = "a process" if silent is None else f"rank {silent}"
        raise ConfigError(
            f"{name} did not answer in time: run the same command again to resume from the last checkpoint"
        )
    failed = [status for status in statuses if status]
    return next((status for status in failed if status != TOGETHER), max(failed, default=0))
