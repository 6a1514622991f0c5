"""Our own training runs as trials of a comparison."""

EXECUTED_BY = "partwise.comparison.runs.execution"
"""The module that trains them in worker processes. It imports torch, this one does not."""
