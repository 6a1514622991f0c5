"""Environment variables by which a process of several learns its place; without torch, for commands that start others."""

import os

from partwise.config import ConfigError

TIMEOUT = "PARTWISE_PROCESS_TIMEOUT"
"""The seconds after which a process that does not answer counts as lost."""
TIMEOUT_SECONDS = 600.0
STORE = "PARTWISE_STORE"
"""The file by which the processes of `--processes` find each other."""
LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets."""


def launched() -> bool:
    """Whether torchrun or `--processes` has started this process."""
    return STORE in os.environ or all(name in os.environ for name in LAUNCHED)


def timeout_seconds() -> float:
    """Raises ConfigError for an invalid PARTWISE_PROCESS_TIMEOUT."""
    text = os.environ.get(TIMEOUT, str(TIMEOUT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86400:
        raise ConfigError(f"{TIMEOUT}={text}: set it to 1 to 86400 seconds")
    return seconds
