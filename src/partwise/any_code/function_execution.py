"""Call a training function once, in this process or in a worker, and store its result."""

import contextlib
import importlib
import inspect
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from partwise.comparison.trials.stored import JOB, STDERR, STDOUT, Outcome, stored_status
from partwise.config import ConfigError
from partwise.config.yaml import show
from partwise.files import open_file, write_file
from partwise.processes import end_with
from partwise.records import read_record

__all__ = ["TrainingFunction", "call", "check_function", "execute", "name_of", "stored_status"]

TrainingFunction = Callable[..., float]
"""`train(seed, report, **settings)` returns the metric; `report(step, value)` adds a point to the curve."""


def execute(folders: list[Path], should_stop: Callable[[], bool]) -> list[str]:
    """Call the functions of the folders, in a worker process; returns their statuses.

    A call cannot pause: a signal to stop, or the death of its server, kills it at once, and resuming calls it again.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with(os.getppid())
    statuses: list[str] = []
    for folder in folders:
        if should_stop():  # also if the server or the signal came first
            return [*statuses, *["interrupted"] * (len(folders) - len(statuses))]
        stored = read_record(folder / JOB)
        place = stored.record("place")
        function = import_function(place.text("module"), place.text("name"), place.text("path"))
        with redirected(folder):
            statuses.append(call(function, folder, stored.record("job"), stored.text("hash")))
    return statuses


def import_function(module: str, name: str, path: str) -> TrainingFunction:
    """A function by the name of its module, which is also looked for in the folder `path`."""
    if path not in sys.path:
        sys.path.append(path)
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    return function


def call(function: TrainingFunction, folder: Path, job: Mapping[str, Any], key: str) -> str:
    """Call the function, store the outcome, and return the status. An interrupt is not caught."""
    curve: dict[int, float] = {}

    def report(step: int, value: float) -> None:
        """Add a point to the curve; a value that is not finite is left out."""
        if math.isfinite(value := float(value)):
            curve[int(step)] = value

    start = time.monotonic()
    try:
        outcome = outcome_of(function(seed=job["seed"], report=report, **job["settings"]))
    except Exception as error:
        write_file(folder / STDERR, traceback.format_exc().encode("utf-8", errors="replace"))
        outcome = failed(f"{type(error).__name__}: {show(' '.join(str(error).split()))}")
    facts = {"seconds": time.monotonic() - start, "curve": tuple(sorted(curve.items()))}
    return outcome.model_copy(update=facts).write(folder, key)


def outcome_of(value: Any) -> Outcome:
    """The outcome for what the function returned: a number, also one of NumPy or torch."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return failed(f"it returned {show(repr(value))}, which is not a number")
    return Outcome(status="done", value=number) if math.isfinite(number) else failed(f"it returned {number}")


def failed(reason: str) -> Outcome:
    return Outcome(status="failed", reason=reason)


@contextlib.contextmanager
def redirected(folder: Path) -> Iterator[None]:
    """Redirect printed text to the trial's folder."""
    with (
        open_file(folder / STDOUT, "w", encoding="utf-8", newline="\n") as out,
        open_file(folder / STDERR, "w", encoding="utf-8", newline="\n") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        yield


def check_function(function: TrainingFunction) -> None:
    """Raise ConfigError unless the function takes `seed` and `report` by name."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in ("seed", "report"):
        if name not in parameters and not takes_any:
            raise ConfigError(f"{name_of(function)} has no parameter {name!r}: define it as train(seed, report, ...)")


def name_of(function: TrainingFunction) -> str:
    return str(getattr(function, "__qualname__", function))
