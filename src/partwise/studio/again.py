"""What can be done with a finished comparison, with the command of each: check, repeat trials, replicate, export."""

import shlex
from collections.abc import Sequence
from typing import Any

from partwise.config import ConfigError

RERUN_SECONDS = 6 * 3600.0
MAX_TRIALS = 100
REPLACED = ("--name", "--first-seed", "--predict")


def again(name: str, command: str, next_seed: int, imports: Sequence[str]) -> dict[str, str]:
    """The commands for a finished comparison; '' for what its command does not allow."""
    return {
        "check": shlex.join(["partwise", *verify_words(name, 0, imports)]),
        "imports": "".join(f" --import {shlex.quote(each)}" for each in imports),
        "replicate": replication(name, command, next_seed),
        "figures": shlex.join(["partwise", "report", name, "--figures", f"{name}-figures"]),
    }


def verify_words(name: str, trials: Any, imports: Sequence[str]) -> list[str]:
    """The words of `partwise verify`, which repeats as many trials. Raises ConfigError."""
    if type(trials) is not int or not 0 <= trials <= MAX_TRIALS:
        raise ConfigError(f"trials {trials}: expected a whole number up to {MAX_TRIALS}")
    rerun = ["--rerun", str(trials)] if trials else []
    return ["verify", f"runs/{name}", *rerun, *(word for each in imports if trials for word in ("--import", each))]


def replication(name: str, command: str, next_seed: int) -> str:
    """The command of a comparison with seeds that it has not used, under another name; '' if it is no `partwise compare`."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    if words[:2] != ["partwise", "compare"]:
        return ""
    kept, skip = [], False
    for word in words:
        if not skip and word.partition("=")[0] not in REPLACED:
            kept.append(word)
        skip = not skip and word in REPLACED
    return shlex.join([*kept, "--first-seed", str(next_seed), "--name", f"{name}-from-{next_seed}"])
