"""The tiers of the tests."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tiers import FAST, OUTGROWN, Tiers

TESTS = Path(__file__).parent


def test_measured_tests_exist() -> None:
    """A test that was renamed is fast until it is measured again, so that its old name must go."""
    for key in Tiers("fast", write=False).measured:
        file, _, name = key.partition("::")
        function = f"def {name.removeprefix('fixture ')}("
        assert function in (TESTS / file).read_text(encoding="utf-8"), f"{key}: run `make test-times`"


def report(name: str, seconds: float, when: str = "call", shared: tuple[str, ...] = ()) -> pytest.TestReport:
    properties = [("shared_fixtures", [f"a.py::fixture {each}" for each in shared])]
    facts = {"keywords": {}, "outcome": "passed", "longrepr": None, "duration": seconds, "user_properties": properties}
    return pytest.TestReport(f"tests/a.py::{name}", ("a.py", 1, name), when=when, **facts)  # type: ignore[arg-type]


def test_a_test_that_outgrows_its_tier_is_told() -> None:
    tiers, lines = Tiers("fast", write=False), list[str]()
    for each in (
        report("quick[1]", FAST),
        report("slow[1]", 0.1),
        report("slow[2]", 2 * OUTGROWN),
        report("slow[3]", 0.1),
    ):
        tiers.pytest_runtest_logreport(each)
    tiers.pytest_runtest_logreport(report("quick", 2 * OUTGROWN, "setup", ("run",)))  # of whichever test is the first
    tiers.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert [line.partition(" took")[0] for line in lines] == ["a.py::fixture run", "a.py::slow"]
