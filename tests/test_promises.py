"""The rows of docs/statistics.md: each promise keeps one measure, before and now."""

from pathlib import Path

import promises
from simulations import at_least, at_most

PAGE = Path(__file__).parents[1] / "docs" / "statistics.md"


def test_arms_that_rarely_fail_are_called_equivalent_as_often_as_no_run_fails() -> None:
    """The sentence is the remedy, not a rule: no rule can tell without a failed run."""
    draws, no_failure = 400, 0.9**8
    equivalent = promises.failing_called_equivalent(draws)
    assert at_least(no_failure, draws) <= equivalent <= at_most(no_failure, draws)
    assert promises.failure_rate_named(draws) == 1


def test_the_page_has_a_row_for_every_promise() -> None:
    """`python tests/statistics_page.py 2000` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    missing = [each.text for each in promises.ALL if f"| {each.text} | {each.before} | " not in page]
    assert not missing
