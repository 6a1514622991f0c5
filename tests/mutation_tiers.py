"""Which tier of the tests notices a mutation: `python tests/mutation_testing.py --tier fast`.

A mutant runs its named tests of the fast tier. One that survives runs the tests of the whole tier that reach its changed
line, which one run of the tier notes (`mutation_reach`), then its named tests of the rest.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mutation_reach import NOTES, noted, read_notes

if TYPE_CHECKING:
    from mutation_testing import Mutation

CAUGHT_BY = ("named", "fast", "rest", "nothing")
"""Named tests of the fast tier, others of it, only named tests of the rest, or no test."""
FAST = ("named", "fast")
ENOUGH = 0.85
"""The share of mutations that `make test` alone has to catch; `make test-all` catches the others."""

Row = dict[str, str]
"""`name`, `module`, `by` of `CAUGHT_BY` (absent while unknown), and the `test` that fails."""


class TierTable:
    """What catches each mutation, kept in a file, so that the same command goes on if the sources are the same."""

    def __init__(self, path: Path | None, sources: str) -> None:
        self.path, self.sources = path, sources
        stored = json.loads(path.read_text()) if path is not None and path.exists() else {}
        self.rows: dict[str, Row] = stored["rows"] if stored.get("sources") == sources else {}

    def write(self, mutation: "Mutation", by: str | None, test: str | None = None) -> None:
        row = {"name": mutation.name, "module": mutation.module, "by": by, "test": test}
        self.rows[mutation.name] = {key: value for key, value in row.items() if value is not None}
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft = self.path.with_suffix(".draft")
            draft.write_text(json.dumps({"sources": self.sources, "rows": self.rows}, indent=1) + "\n")
            draft.replace(self.path)
        print(f"{mutation.name}: {by or 'survived its named fast tests'}  {test or ''}", flush=True)

    def is_enough(self, mutations: Sequence["Mutation"]) -> bool:
        """Whether the fast tier catches its share, and both tiers together all."""
        by = Counter(self.rows[each.name]["by"] for each in mutations)
        return sum(by[each] for each in FAST) >= ENOUGH * len(mutations) and not by["nothing"]

    def lines(self, mutations: Sequence["Mutation"]) -> list[str]:
        """The table in Markdown: counts by folder, then what the fast tier misses."""
        rows = [self.rows[each.name] for each in mutations]
        counts = {folder: Counter[str]() for folder in sorted({folder_of(row["module"]) for row in rows})}
        for row in rows:
            counts[folder_of(row["module"])][row["by"]] += 1
        counts["all"] = sum(counts.values(), Counter())
        return [
            "| Folder | Bugs | Named tests of `make test` | Its other tests | Only `make test-all` | None |",
            "| --- | --- | --- | --- | --- | --- |",
            *(
                f"| {folder} | {count.total()} | {' | '.join(str(count[by]) for by in CAUGHT_BY)} |"
                for folder, count in counts.items()
            ),
            "",
            *(f"- `{row['name']}`: {row.get('test', 'none')}" for row in rows if row["by"] not in FAST),
        ]


def folder_of(module: str) -> str:
    """The first folder of a module."""
    folder, separator, _ = module.partition("/")
    return folder if separator else "the root"


def find_tiers(
    mutations: Sequence["Mutation"],
    unchanged: "Mutation",
    failing: Callable[["Mutation", Sequence[str]], str | None],
    copy: Path,
    table: TierTable,
) -> None:
    """Fill the table; `failing` runs pytest with the words on a mutant, `copy` is one of the project for the notes."""

    def confirmed(mutation: "Mutation", words: Sequence[str]) -> str | None:
        """The first test that fails with the mutation and passes without."""
        while failed := failing(mutation, words):
            test = failed.partition(" ")[2]
            if not failed.startswith(("FAILED", "ERROR")) or not failing(unchanged, [test]):
                return failed
            words = [*words, "--deselect", test]
        return None

    for mutation in mutations:
        if mutation.name not in table.rows:
            failed = failing(mutation, ["--tier", "fast", *mutation.tests.split()])
            table.write(mutation, "named" if failed else None, failed)
    survivors = [each for each in mutations if "by" not in table.rows[each.name]]
    reached = tests_that_reach(survivors, copy) if survivors else {}
    for mutation in survivors:
        tests = mutation.tests.split()
        stages = [("rest", ["--tier", "rest", *tests])]
        if near := reached[mutation.name]:
            words = copy / "tests-that-reach.txt"
            words.write_text("".join(f"{test}\n" for test in near))
            stages.insert(0, ("fast", ["--tier", "fast", f"@{words}"]))
        caught = ((by, failed) for by, words in stages if (failed := confirmed(mutation, words)))
        table.write(mutation, *next(caught, ("nothing", None)))


def tests_that_reach(mutations: Sequence["Mutation"], copy: Path) -> dict[str, list[str]]:
    """By mutation, the tests of the fast tier that run its changed statement; all, if an import does."""
    notes = copy / "notes.txt"
    notes.touch()
    originals = {path: (copy / path).read_text(encoding="utf-8") for path in {each.path for each in mutations}}
    for path, original in originals.items():
        text = noted(original, [(each.name, each.old) for each in mutations if each.path == path])
        (copy / path).write_text(text, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(copy / "src"), str(copy / "tests")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        NOTES: str(notes),
    }
    words = ["-p", "mutation_reach", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", "--tier", "fast"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=copy, env=environment, capture_output=True, text=True
        )
    finally:
        for path, original in originals.items():
            (copy / path).write_text(original, encoding="utf-8")
    if done.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    reached = read_notes(notes)
    broken = reached.get("*", set())
    return {
        each.name: ["tests"] if "" in reached.get(each.name, ()) else sorted(reached.get(each.name, set()) | broken)
        for each in mutations
    }
