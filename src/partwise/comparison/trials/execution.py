"""A group of trials in a process of their own: what it executes, and what its end says of them."""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from partwise.comparison.trials.job import JOB, check_executor
from partwise.config import ConfigError, read_file
from partwise.files import write_file
from partwise.processes import ASKING, ended_by
from partwise.records import read_record

ERROR, STATUS = "error.txt", "status.json"
"""In the folder of the first trial: the traceback of a failure, and the statuses of all."""

CORES = "PARTWISE_CORES"
"""The variable of a process that names the logical CPUs it is pinned to."""


def enter(directory: str, variables: Mapping[str, str]) -> None:
    """Work in this folder, with these environment variables, and on the cores that one of them names."""
    os.chdir(directory)
    os.environ.update(variables)
    if sys.platform != "win32" and CORES in variables:
        os.sched_setaffinity(0, {int(core) for core in variables[CORES].split(",")})


def execute_group(folders: list[Path], should_stop: Callable[[], bool]) -> None:
    """Execute the trials of these folders, and write their statuses to the folder of the first."""
    statuses = ["failed"] * len(folders)
    try:
        path = folders[0] / JOB
        module = import_module(check_executor(path, read_record(path).text("executed_by")))
        statuses = module.execute(folders, should_stop)
    except ConfigError as error:
        statuses = [f"failed {error}"] * len(folders)
    except BaseException:
        write_file(folders[0] / ERROR, traceback.format_exc().encode("utf-8", errors="replace"))
    write_file(folders[0] / STATUS, json.dumps(statuses).encode())


def forget_error(folders: list[Path]) -> None:
    """Remove the error of an earlier attempt. Raises OSError."""
    (folders[0] / ERROR).unlink(missing_ok=True)


def group_statuses(folders: list[Path], exit_status: int, asked: bool = False) -> list[str]:
    """The statuses of trials whose process has ended with this status, perhaps since it was `asked` to."""
    if exit_status == 0:
        try:
            statuses: list[str] = json.loads(read_file(folders[0] / STATUS))
            return statuses
        except (OSError, ValueError, ConfigError) as error:
            return [f"failed {error}"] * len(folders)
    return ["interrupted" if asked else end_status(exit_status)] * len(folders)


def end_status(exit_status: int) -> str:
    """The status of trials whose process ended without one."""
    name = ended_by(exit_status)
    if name in ("SIGINT", *(number.name for number in ASKING)):
        return "interrupted"
    if name:
        return f"failed its process was killed by {f'signal {-exit_status}' if exit_status < 0 else name}"
    return "failed its process could not write its status: check that its folder exists, its permissions and the disk space"


def leave_standard_streams() -> tuple[int, int]:
    """The descriptors of requests and replies, apart from the standard streams, which a user's part may read or print to."""
    requests, replies = os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull if sys.stderr is None else sys.stderr.fileno(), 1)
    return requests, replies
