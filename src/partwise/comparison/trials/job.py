"""`job.json`: what a trial is, in its folder. It names the module that executes it, one of a fixed set."""

from pathlib import Path

from partwise.config import ConfigError

JOB = "job.json"
EXECUTORS = frozenset(f"partwise.comparison.{kind}.execution" for kind in ("runs", "commands", "functions"))
"""The modules whose function `execute(folders, should_stop) -> statuses` executes trials."""


def check_executor(path: Path, module: str) -> str:
    """Return the module that a job names. Raises ConfigError for any other than those that execute trials."""
    if module not in EXECUTORS:
        raise ConfigError(f"{path} names a module that executes no trials: {module}: run the comparison again")
    return module
