"""The parts of a model, one file or folder per family. Importing this package registers the built-in ones."""

from partwise.parts import init, mtp, ngram_embeddings, ngram_lm, norms, plain, short_conv
from partwise.parts.attention import differential, mla, multihead
from partwise.parts.contracts import (
    Attention,
    FeedForward,
    Init,
    MultiTokenPrediction,
    NGramEmbeddings,
    NGramLM,
    Norm,
    Positions,
    Residual,
    ShortConv,
)
from partwise.parts.feed_forward import dense, moe
from partwise.parts.positions import absolute, bias, rotary
from partwise.parts.residual import hyper_connections, wirings

__all__ = [
    "MODEL_FAMILIES",
    "absolute",
    "bias",
    "dense",
    "differential",
    "hyper_connections",
    "init",
    "mla",
    "moe",
    "mtp",
    "multihead",
    "ngram_embeddings",
    "ngram_lm",
    "norms",
    "plain",
    "rotary",
    "short_conv",
    "wirings",
]

MODEL_FAMILIES = {
    kind.family: kind
    for kind in (
        Positions,
        NGramEmbeddings,
        Attention,
        ShortConv,
        FeedForward,
        Norm,
        Residual,
        MultiTokenPrediction,
        Init,
        NGramLM,
    )
}
"""Family name -> base class of its recipes."""
