"""`job.json`: what a trial is, in its folder. It names what executes it, one of a fixed set."""

from pathlib import Path

from partwise.config import ConfigError

JOB = "job.json"
RUNS, COMMANDS, FUNCTIONS = (f"partwise.comparison.{kind}.execution" for kind in ("runs", "commands", "functions"))
"""The kinds of trials, by the names that jobs store. They were modules once and stay, so that all jobs can be read."""
EXECUTORS = {
    RUNS: "partwise.ablation.run_execution",
    COMMANDS: "partwise.any_code.command_execution",
    FUNCTIONS: "partwise.any_code.function_execution",
}
"""The module whose function `execute(folders, should_stop) -> statuses` executes the trials of each kind."""


def check_executor(path: Path, name: str) -> str:
    """Return the module that executes a job, by the name in it. Raises ConfigError for a name that is none of EXECUTORS."""
    if name not in EXECUTORS:
        raise ConfigError(f"{path} names a module that executes no trials: {name}: run the comparison again")
    return EXECUTORS[name]
