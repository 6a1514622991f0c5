"""Git commands that run no program which the configuration of the repository names: a received folder brings its own."""

import subprocess
from pathlib import Path

QUIET = ("core.fsmonitor=false", "core.hooksPath=/dev/null")
OFFLINE = ("protocol.allow=never",)
"""A partial clone would fetch what it lacks, with the programs of its configuration."""


def git_command(folder: Path, *words: str) -> list[str]:
    """The words of a git command in a folder. Filters that only the repository's own configuration defines do not run."""
    start = ["git", "-C", str(folder)]
    settings = [*QUIET, *(OFFLINE if words[0] != "worktree" else ())]
    if words[0] in ("diff", "worktree"):  # what reads or writes files of the work tree
        settings += [f"{name}=" for name in _own_filters(start)]
    return [*start, *(word for setting in settings for word in ("-c", setting)), *words]


def _own_filters(start: list[str]) -> list[str]:
    """The keys of filters in the configuration of the repository; those of the user and of the system are trusted."""
    listing = ["config", "--includes", "--show-scope", "-z", "--name-only", "--get-regexp", r"^filter\..*\."]
    found = subprocess.run([*start, *listing], capture_output=True, encoding="utf-8", errors="replace", check=False)
    fields = found.stdout.split("\0")
    names = {name for scope, name in zip(fields[::2], fields[1::2], strict=False) if scope in ("local", "worktree")}
    return sorted(name for name in names if name.endswith((".clean", ".smudge", ".process", ".required")))
