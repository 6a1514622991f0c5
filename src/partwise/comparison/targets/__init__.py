"""Runs against a target, a number fixed in advance: reached, missed or undecided. Imports no torch."""
