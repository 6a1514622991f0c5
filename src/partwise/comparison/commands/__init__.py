"""Commands of any program as trials of a comparison: nothing here imports torch."""

EXECUTED_BY = "partwise.comparison.commands.execution"
"""The module that runs them in worker processes."""
