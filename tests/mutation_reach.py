"""Which tests run a line that a mutation changes: a pytest plugin, and the call that notes it.

`noted` puts a call of `note` before the changed statement of every mutation, so that one run of the tests tells for each
mutation which of them could notice it. Tests that read the sources fail by such a call, and count as well.
"""

import ast
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

NOTES = "PARTWISE_MUTATION_NOTES"
"""The variable of the environment that names the file of notes; processes that a test starts inherit it."""

_seen = set[tuple[str, str]]()


def note(*names: str) -> None:
    """Write that the running test has reached the mutations, once each."""
    test, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")
    # what a fixture computes, all tests of the file may read
    test = test.partition("::" if phase.startswith("setup") else "[")[0]
    if new := [name for name in names if (name, test) not in _seen]:
        _seen.update((name, test) for name in new)
        with open(os.environ[NOTES], "a", encoding="utf-8") as file:
            file.writelines(f"{name}\t{test}\n" for name in new)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        with open(os.environ[NOTES], "a", encoding="utf-8") as file:
            file.write(f"*\t{report.nodeid.partition('[')[0]}\n")


def read_notes(path: Path) -> dict[str, set[str]]:
    """By mutation, the functions and files of tests that reach it; `*` has those that failed by the notes."""
    reached: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, test = line.split("\t")
        reached.setdefault(name, set()).add(test)
    return reached


def noted(source: str, changed: Iterable[tuple[str, str]]) -> str:
    """`source` with a note of each name before the innermost statement that has its text."""
    lines, tree = source.splitlines(keepends=True), ast.parse(source)
    names: dict[int, list[str]] = {}
    for name, text in changed:
        line = source[: source.index(text) + len(text) - len(text.lstrip())].count("\n") + 1
        names.setdefault(_statement(tree, lines, line), []).append(name)
    for line, each in sorted(names.items(), reverse=True):
        indent = lines[line - 1][: len(lines[line - 1]) - len(lines[line - 1].lstrip())]
        lines.insert(line - 1, f"{indent}__import__('mutation_reach').note({', '.join(map(repr, each))})\n")
    return "".join(lines)


def _statement(tree: ast.Module, lines: list[str], line: int) -> int:
    """The first line of the innermost statement around `line`; an `elif` belongs to its `if`."""
    statements = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    around = [each.lineno for each in statements if each.lineno <= line <= (each.end_lineno or line)]
    return max(first for first in around if not lines[first - 1].lstrip().startswith("elif "))
