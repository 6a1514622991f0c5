"""Arm and seed of a run, from its name: by a pattern of the user, or by a trailing number that arms share."""

import re
from collections.abc import Collection, Iterable
from itertools import combinations
from typing import NamedTuple

from partwise.config import ConfigError


class RunName(NamedTuple):
    """The name of a run, and what it says."""

    name: str
    arm: str
    seed: int
    is_labeled: bool = True
    """Whether a pattern or the word "seed" marks the seed, so that nothing is guessed."""


_TRAILING = re.compile(r"(?P<arm>.+?)[-_/](?:(?P<label>seed[-_=]?)|s)?(?P<seed>\d+)")
"""Names such as swiglu-3, swiglu_seed3 and swiglu/seed-3."""

_NO_SEED = re.compile(
    r"""
    .*\d\.?[eE][-+_]?\d+                                       # 1e-3
    | (.*\D)? (19|20)\d\d (?P<mark>[-_.]?) (0[1-9]|1[0-2]) (?P=mark) \d\d ([-_T]?\d\d([-_.:]?\d\d){1,2})?
    | (.*\D)? (19|20)\d\d [-_.] (0[1-9]|1[0-2])                # 2024-01, and above 2024-01-31 and 20240131_123000
    | (.*\D)? \d\d? [-_.] \d\d? [-_.] (19|20)\d\d            # 31-01-2024
    | (.*\D)? ([01]\d|2[0-3]) [-_.:] [0-5]\d [-_.:] [0-5]\d   # 12-30-00
    """,
    re.VERBOSE,
)
"""Names that end in an exponent, a date or a time."""

HINT = "give the names' pattern, as in --run-names '{arm}-seed{seed}'"


def name_runs(names: Collection[str], pattern: str | None, source: str, nested: bool = False) -> dict[str, RunName]:
    """Name -> its run. With `nested`, names are paths, and a run may be a folder above: that nearest to the root that fits.

    With a `pattern` such as `{arm}-seed{seed}`, names that do not fit are left out. Without one, a trailing number is a seed
    if the word "seed" precedes it, or if two arms share two of its values, but never within an exponent, a date or a time.
    Raises ConfigError.
    """
    candidates = {name: _folders(name) if nested else [name] for name in names}
    if pattern is not None:
        regex = _compile(pattern)
        fits = {name: [m for each in paths if (m := regex.fullmatch(each))] for name, paths in candidates.items()}
        found = {name: RunName(m[0][0], m[0]["arm"], int(m[0]["seed"])) for name, m in fits.items() if m}
        if not found and names:
            shown = ", ".join(sorted(names)[:3])
            raise ConfigError(f"--run-names {pattern!r}: {source}: no run has such a name (found: {shown}, ...)")
        return found
    trailing = {name: [run for each in paths if (run := _trailing(each))] for name, paths in candidates.items()}
    for name, runs in trailing.items():
        if not runs:
            raise ConfigError(f"{source}: run {name!r}: its name does not end in a seed: {HINT}")
    for index in (0, -1):  # the folder nearest to the root, or to the file
        chosen = {name: next((r for r in runs if r.is_labeled), runs[index]) for name, runs in trailing.items()}
        if all(run.is_labeled for run in chosen.values()) or _share_seeds(chosen.values()):
            return chosen
    guess = next(runs[0] for runs in trailing.values() if not runs[0].is_labeled)
    raise ConfigError(f"{source}: run {guess.name!r}: no two arms share two seeds if {guess.seed} is a seed: {HINT}")


def _compile(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern such as `{arm}-seed{seed}`. Raises ConfigError."""
    if sorted(re.findall(r"\{\w*\}", pattern)) != ["{arm}", "{seed}"]:
        raise ConfigError(
            f"--run-names {pattern!r}: expected {{arm}} and {{seed}} once each, as in {{arm}}-seed{{seed}}"
        )
    parts = re.split(r"(\{arm\}|\{seed\})", pattern)
    groups = {"{arm}": "(?P<arm>.+)", "{seed}": r"(?P<seed>\d+)"}
    return re.compile("".join(groups.get(part, re.escape(part)) for part in parts))


def _folders(path: str) -> list[str]:
    """A path and the folders above it, that nearest to the root first."""
    parts = path.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]


def _trailing(name: str) -> RunName | None:
    match = _TRAILING.fullmatch(name)
    if match is None or (match["label"] is None and _NO_SEED.fullmatch(name)):
        return None
    return RunName(name, match["arm"], int(match["seed"]), match["label"] is not None)


def _share_seeds(runs: Iterable[RunName]) -> bool:
    """Whether two arms have two seeds in common."""
    seeds: dict[str, set[int]] = {}
    for run in runs:
        seeds.setdefault(run.arm, set()).add(run.seed)
    return any(len(a & b) > 1 for a, b in combinations(seeds.values(), 2))
