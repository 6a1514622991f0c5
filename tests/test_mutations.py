"""Every mutation of the lists still applies: a change of the code that moves its text is told here."""

import ast
from pathlib import Path

import pytest

import mutation_reach
from mutation_reach import noted
from mutation_testing import LISTS, ROOT, Mutation, read_mutations
from mutation_tiers import TierTable


@pytest.mark.promise
def test_every_mutation_applies_and_its_tests_exist() -> None:
    for mutation in (each for name in LISTS for each in read_mutations(name)):
        ast.parse(mutation.source(), str(mutation.path))
        missing = [path for path in mutation.tests.split() if not (ROOT / path.partition("::")[0]).exists()]
        assert not missing, mutation.name


SOURCE = '''\
def power(x, n):
    """x^n."""
    if n == 0:
        return 1
    elif (
        n < 0
    ):
        return power(
            1 / x,
            -n,
        )
    return x * power(x, n - 1)
'''


def test_a_note_stands_before_the_changed_statement() -> None:
    notes = noted(SOURCE, [("sign", "            -n,"), ("end", "n < 0"), ("step", "n - 1"), ("base", "1 / x")])
    lines = [line.strip().removeprefix("__import__('mutation_reach').") for line in notes.splitlines()]
    assert [(line, lines[at + 1]) for at, line in enumerate(lines) if line.startswith("note(")] == [
        ("note('end')", "if n == 0:"),
        ("note('sign', 'base')", "return power("),
        ("note('step')", "return x * power(x, n - 1)"),
    ]
    assert [line for line in notes.splitlines(keepends=True) if "note(" not in line] == SOURCE.splitlines(keepends=True)


def test_notes_name_each_test_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a fixture reaches counts for its whole file, what an import reaches for all tests."""
    monkeypatch.setenv(mutation_reach.NOTES, str(tmp_path / "notes"))
    monkeypatch.setattr(mutation_reach, "_seen", set())
    for test in ("tests/a.py::one[1] (call)", "tests/a.py::one[a (b] (call)", "tests/b.py::two (setup)", ""):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        mutation_reach.note("x")
    assert mutation_reach.read_notes(tmp_path / "notes") == {"x": {"tests/a.py::one", "tests/b.py", ""}}
    assert len((tmp_path / "notes").read_text().splitlines()) == 3


def test_the_table_of_tiers(tmp_path: Path) -> None:
    """It goes on while the sources are the same; one mutation of seven may be left to the rest, and none to no tier."""
    mutations = [Mutation(f"m{number}", "parts/layers.py", "a", "b") for number in range(7)]
    table = TierTable(tmp_path / "tiers.json", "sources")
    for mutation in mutations:
        table.write(mutation, "named" if mutation.name == "m0" else "fast", "FAILED tests/a.py::one")
    for by, enough in (("rest", True), ("nothing", False)):
        table.write(mutations[-1], by)
        assert table.is_enough(mutations) == enough, by
    assert "| parts | 7 | 1 | 5 | 0 | 1 |" in table.lines(mutations)
    assert TierTable(tmp_path / "tiers.json", "sources").rows == table.rows
    assert not TierTable(tmp_path / "tiers.json", "other sources").rows
    table.write(mutations[1], "rest")
    table.write(mutations[2], "rest")
    assert not table.is_enough(mutations)
