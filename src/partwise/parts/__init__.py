"""The parts of a model, one file per family. Importing this package registers the built-in ones."""

from partwise.parts import (
    ahead,
    attention,
    counts,
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
from partwise.parts.families import (
    Ahead,
    Attention,
    Counts,
    FeedForward,
    Init,
    Lookup,
    Mixing,
    Norm,
    Positions,
    Residual,
)

__all__ = [
    "MODEL_FAMILIES",
    "ahead",
    "attention",
    "counts",
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

MODEL_FAMILIES = {
    kind.family: kind
    for kind in (Positions, Lookup, Attention, Mixing, FeedForward, Norm, Residual, Ahead, Init, Counts)
}
"""What each family of a model builds, by its name."""
