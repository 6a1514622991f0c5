"""The environment of commands: code, packages, machine. It is recorded before the first trial, and changes are reported."""

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from partwise.config import digest, read_file
from partwise.git import run_git
from partwise.machine import graphics, hardware

MAX_FILE = 64 * 2**20
"""Larger files that a command names are data rather than code, and are not hashed."""


def describe_environment(cwd: Path, words: Iterable[str], variables: Iterable[str]) -> dict[str, Any]:
    """The code in `cwd`, the packages of this environment, the machine, and the `variables` that are set here."""
    set_here = {name: os.environ[name] for name in sorted(set(variables)) if name in os.environ}
    return {
        "code": describe_code(cwd, words),
        "packages": digest(installed_packages()),
        "machine": {**hardware(), **({"gpus": ", ".join(found)} if (found := graphics()) else {})},
        "variables": set_here,
    }


def describe_code(cwd: Path, words: Iterable[str]) -> dict[str, Any]:
    """The commit and the hash of uncommitted changes of the repository around `cwd`, and of the files among `words`."""
    code: dict[str, Any] = {}
    commit = git(cwd, "rev-parse", "HEAD")
    if commit is not None:
        code["commit"] = commit.strip()
        changes = git(cwd, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--ignore-submodules=dirty", "--binary")
        code["uncommitted"] = hashlib.sha256(changes.encode()).hexdigest() if changes else None
        if changes is None:  # such as in a partial clone that lacks a file
            code["uncommitted"] = "unknown"
    code["files"] = {word: found for word in sorted(set(words)) if (found := file_hash(cwd / word))}
    return code


def git(cwd: Path, *words: str) -> str | None:
    """The output of a git command in `cwd`; None if it fails or there is no git."""
    try:
        done = run_git(cwd, *words)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def file_hash(path: Path) -> str | None:
    try:
        return hashlib.sha256(read_file(path, MAX_FILE)).hexdigest()
    except (OSError, ValueError):  # a word that is not a path
        return None


def installed_packages() -> list[str]:
    found = {f"{each.metadata['Name']}=={each.version}" for each in metadata.distributions()}
    return [sys.version, *sorted(found)]


def changes_since(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences from an earlier environment, in words."""
    found = []
    old, new = before["code"], now["code"]
    if old.get("commit") != new.get("commit"):
        found.append(f"the commit was {short(old.get('commit'))}, now {short(new.get('commit'))}")
    if old.get("uncommitted") != new.get("uncommitted"):
        found.append("uncommitted changes of the repository")
    found += [f"the file {name}" for name, value in new["files"].items() if old["files"].get(name, value) != value]
    if before["packages"] != now["packages"]:
        found.append("the installed packages")
    found += [
        f"{name} was {old}, now {new}"
        for name, new in now["machine"].items()
        if (old := before["machine"].get(name)) != new
    ]
    earlier, later = before["variables"], now["variables"]
    changed = (name for name in sorted({*earlier, *later}) if earlier.get(name) != later.get(name))
    return [*found, *(f"the variable {name}" for name in changed)]


def short(commit: str | None) -> str:
    return commit[:10] if commit else "unknown"
