"""The parts of a model, one file per family. Importing this package registers the built-in ones."""

from partwise.parts import (
    ahead,
    attention,
    differential,
    experts,
    feed_forward,
    init,
    latent,
    lookup,
    mixing,
    norms,
    positions,
    relative,
    residual,
)

__all__ = [
    "ahead",
    "attention",
    "differential",
    "experts",
    "feed_forward",
    "init",
    "latent",
    "lookup",
    "mixing",
    "norms",
    "positions",
    "relative",
    "residual",
]
