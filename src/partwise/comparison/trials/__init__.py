"""The runs of a comparison and the worker processes that execute them."""
