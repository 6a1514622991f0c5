"""`job.json`: the names that jobs store, and what executes them."""

from importlib import import_module

import pytest

from partwise.comparison.trials.job import EXECUTORS


@pytest.mark.parametrize("kind", ["runs", "commands", "functions"])
def test_the_names_of_stored_jobs_are_executed(kind: str) -> None:
    module = import_module(EXECUTORS[f"partwise.comparison.{kind}.execution"])
    assert callable(module.execute) and callable(module.stored_status)
