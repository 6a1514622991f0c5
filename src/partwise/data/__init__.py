"""Corpora -> shards on disk -> deterministic batches."""

from partwise.data.arithmetic import Problems, generate, solve, split_problems
from partwise.data.batches import batch, windows
from partwise.data.corpora import Arithmetic, Corpus, Python, Shakespeare, TextFile, cache_root, data_override
from partwise.data.shards import Dataset, Shard, prepare

__all__ = [
    "Arithmetic",
    "Corpus",
    "Dataset",
    "Problems",
    "Python",
    "Shakespeare",
    "Shard",
    "TextFile",
    "batch",
    "cache_root",
    "data_override",
    "generate",
    "prepare",
    "solve",
    "split_problems",
    "windows",
]
