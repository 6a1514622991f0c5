"""Our own training runs as trials of a comparison."""
