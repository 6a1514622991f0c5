"""The trials of a comparison: a workload makes them, an executor runs them."""
