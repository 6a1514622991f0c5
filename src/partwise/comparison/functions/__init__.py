"""Python functions as trials of a comparison: nothing here imports torch."""

EXECUTED_BY = "partwise.comparison.functions.execution"
"""The module that calls them in worker processes."""
