"""The parts of a model, one file per family. Importing this package registers the built-in ones."""

from partwise.parts import attention, feed_forward, init, norms, positions, residual

__all__ = ["attention", "feed_forward", "init", "norms", "positions", "residual"]
