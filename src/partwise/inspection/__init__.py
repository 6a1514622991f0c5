"""Read-only inspections of a preset or a run."""
