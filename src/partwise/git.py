"""Git with hooks, filters and fsmonitor of untrusted repositories disabled: a received folder has a configuration."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from partwise.config import ConfigError

QUIET = ("core.fsmonitor=false", "core.hooksPath=/dev/null")

OFFLINE = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "", "GIT_TERMINAL_PROMPT": "0"}
"""A partial clone would fetch what it lacks, with the programs of its configuration, which may also allow their protocol: of
these variables it overrides none. The first needs git 2.45; the second, an empty list, stops older ones."""


def run_git(
    folder: Path,
    *words: str,
    timeout: float | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    """Run a git command in a folder, with further environment variables.

    Filters that only the repository's own configuration defines do not run.

    Raises OSError without git, and TimeoutExpired.
    """
    settings = [*QUIET]
    if words[0] in ("apply", "diff", "reset", "worktree"):  # what reads or writes files of the work tree
        settings += [f"{name}=" for name in _own_filters(folder)]
    options = [word for setting in settings for word in ("-c", setting)]
    return _run(folder, *options, *words, timeout=timeout, variables=variables)


def missing_objects(folder: Path, commit: str) -> list[str]:
    """The objects of a commit that a partial clone lacks: the path of each file, if its folder is there, and its hash."""
    listed = run_git(folder, "rev-list", "--objects", "--no-walk", "--missing=print", commit).stdout.splitlines()
    missing = [line[1:] for line in listed if line.startswith("?")]
    names = {}
    for entry in run_git(folder, "ls-tree", "-r", "-z", commit).stdout.split("\0") if missing else ():
        facts, _, name = entry.partition("\t")
        names[facts.rpartition(" ")[2]] = name
    return [f"{names[each]} ({each[:10]})" if each in names else each[:10] for each in missing]


def _own_filters(folder: Path) -> list[str]:
    """The keys of filters in the configuration of the repository; those of the user and of the system are trusted."""
    listing = ["config", "--includes", "--show-scope", "-z", "--name-only", "--get-regexp", r"^filter\..*\."]
    fields = _run(folder, *listing).stdout.split("\0")
    names = {name for scope, name in zip(fields[::2], fields[1::2], strict=False) if scope in ("local", "worktree")}
    return sorted(name for name in names if name.endswith((".clean", ".smudge", ".process", ".required")))


def _run(
    folder: Path,
    *words: str,
    timeout: float | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["git", "-C", str(folder), *words],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        timeout=timeout,
        env={**os.environ, **OFFLINE, **variables},
    )


def shell() -> str:
    """The program that runs commands for a shell; on Windows, where the system has none, that of git.

    Raises ConfigError without it.
    """
    if sys.platform != "win32":
        return "/bin/sh"
    places = [Path(found).resolve().parents[1] / "bin" for found in [shutil.which("git")] if found]
    found = shutil.which("sh") or next((path for place in places if (path := shutil.which("sh", path=place))), None)
    if found is None:
        raise ConfigError("a command for a shell needs `sh`: install Git for Windows, or use a command without shell")
    return found
