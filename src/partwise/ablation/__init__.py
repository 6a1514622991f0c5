"""Comparisons of our own models: requests about presets, and training runs as trials."""
