"""Look inside a model and change nothing."""
