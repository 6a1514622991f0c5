"""Inspections of a preset or a run, none of which modifies it."""
