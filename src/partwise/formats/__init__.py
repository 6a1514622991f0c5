"""Models in other programs' files."""
