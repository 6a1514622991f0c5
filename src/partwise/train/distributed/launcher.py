"""`--processes N`: start the processes of a run on this machine, pass on signals, and say which one failed.

The first process has the terminal; the others write to `ranks/` in the run's folder. On several machines, use torchrun.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import NoReturn

from partwise.config import ConfigError
from partwise.files import open_file
from partwise.processes import OWN_GROUP, ask_this_process, ended_by, has_parent, send
from partwise.train.distributed.environment import STORE, timeout_seconds

LAUNCHER = "PARTWISE_LAUNCHER"
"""The environment variable with the number of the process that has started the others: on Windows, where an environment's
Python starts another, it is not their parent."""
LOST, TOGETHER = 75, 76
"""Exit statuses of a process that lost another one, and of one that ends because another failed, which says why."""
PROCESSES_PER_CORE = 4
"""More processes are refused. With some more than cores, as in tests of what several do, a run is only slow."""
GRACE_SECONDS = 10.0
"""The time that the others have to end by themselves after one has failed, before they are killed."""


def check_cores(n: int) -> None:
    """Raise ConfigError for many more processes than cores: starting them alone could stall the machine."""
    cores = os.cpu_count() or 1
    if n > PROCESSES_PER_CORE * cores:
        raise ConfigError(
            f"--processes {n}: this machine has {cores} cores; start at most {PROCESSES_PER_CORE * cores} processes"
        )


def launch(n: int, words: list[str], signals: tuple[signal.Signals, ...]) -> int:
    """Run `partwise WORDS` in `n` processes; returns the exit status. Raises ConfigError if one died or did not answer."""
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // n)))
    with started(n, [sys.executable, "-P", "-m", "partwise", *words], {"OMP_NUM_THREADS": threads}) as children:

        def forward(number: int, frame: FrameType | None) -> None:
            for child in children:
                send(child, signal.Signals(number))

        earlier = {each: signal.signal(each, forward) for each in signals if signal.getsignal(each) != signal.SIG_IGN}
        try:
            return wait(children)
        finally:
            for each, handler in earlier.items():
                signal.signal(each, handler)


@contextmanager
def started(
    n: int, command: list[str], variables: Mapping[str, str], logs: Sequence[Path] = ()
) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """`n` processes of a command that find each other by a file; what still runs at the end is killed.

    `logs` are the files for what each prints, if it is not the terminal's.
    """
    timeout_seconds()  # raises for an invalid one
    with tempfile.TemporaryDirectory(prefix="partwise-") as folder, ExitStack() as files:
        sizes = {
            "WORLD_SIZE": str(n),
            "LOCAL_WORLD_SIZE": str(n),
            STORE: str(Path(folder) / "store"),
            LAUNCHER: str(os.getpid()),
        }
        children: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(n):
                output = files.enter_context(open_file(logs[rank], "wb")) if logs else None
                children.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **variables, **sizes, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                        stdout=output,
                        stderr=output,
                        **OWN_GROUP,  # a terminal's Ctrl-C reaches this process alone, which passes it on
                    )
                )
            yield children
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()


def end_with_launcher() -> None:
    """In a process of several: ask it to save and end if the one that started it is killed."""
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))

    def watch() -> None:
        while has_parent(launcher):
            time.sleep(1)
        ask_this_process()

    Thread(target=watch, daemon=True).start()


def end_now(status: int) -> NoReturn:
    """End without waiting for what torch's threads still await from other processes, at which they would abort."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def wait(
    children: list["subprocess.Popen[bytes]"],
    on_poll: Callable[[], None] = lambda: None,
    log: str = "ranks/{rank}.log in the run's folder",
) -> int:
    """The exit status of all; if one fails, the others have GRACE_SECONDS to end by themselves. Raises ConfigError.

    `on_poll` is called while they run; `log` is where a process says why it failed.
    """
    failed_at: float | None = None
    while any(child.poll() is None for child in children):
        if failed_at is None and any(child.returncode for child in children):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() - failed_at > GRACE_SECONDS:
            break
        on_poll()
        time.sleep(0.05)
    statuses = [child.poll() for child in children]
    for rank, status in enumerate(statuses):
        if status is not None and (name := ended_by(status)):
            reason = " (out of memory?)" if name == "SIGKILL" else ""
            raise ConfigError(
                f"rank {rank} was ended by {name}{reason}: run the same command again to resume "
                "from the last checkpoint"
            )
    if statuses[0] not in (None, 0, LOST, TOGETHER):
        return statuses[0]  # it has said why
    for rank, status in enumerate(statuses):
        if status not in (None, 0, LOST, TOGETHER) and LOST in statuses:
            raise ConfigError(f"rank {rank} ended with status {status}: {log.format(rank=rank)} says why")
    if None in statuses or LOST in statuses:
        silent = statuses.index(None) if None in statuses else None
        name = "a process" if silent is None else f"rank {silent}"
        raise ConfigError(
            f"{name} did not answer in time: run the same command again to resume from the last checkpoint"
        )
    failed = [status for status in statuses if status]
    return next((status for status in failed if status != TOGETHER), max(failed, default=0))
