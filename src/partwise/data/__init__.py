"""Corpora -> shards on disk -> deterministic batches."""

from partwise.data.arithmetic import Problems, generate
from partwise.data.batches import batch, windows
from partwise.data.corpora import Arithmetic, Corpus, Python, Shakespeare, TextFile, cache_root, data_override
from partwise.data.documents import Folder, JsonLines
from partwise.data.examples import IGNORED, Batch, Examples, Pairs, ProblemWindows, Windows, examples, problem_lines
from partwise.data.pairs import ArithmeticPairs, PairFile, PairText
from partwise.data.questions import solve, split_problems
from partwise.data.shards import Dataset, Shard, prepare

__all__ = [
    "IGNORED",
    "Arithmetic",
    "ArithmeticPairs",
    "Batch",
    "Corpus",
    "Dataset",
    "Examples",
    "Folder",
    "JsonLines",
    "PairFile",
    "PairText",
    "Pairs",
    "ProblemWindows",
    "Problems",
    "Python",
    "Shakespeare",
    "Shard",
    "TextFile",
    "Windows",
    "batch",
    "cache_root",
    "data_override",
    "examples",
    "generate",
    "prepare",
    "problem_lines",
    "solve",
    "split_problems",
    "windows",
]
