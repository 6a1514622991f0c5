"""Comparisons of models over paired seeds."""
