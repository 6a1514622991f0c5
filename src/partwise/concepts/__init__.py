"""Concepts, settings and words of the project, found by name."""
