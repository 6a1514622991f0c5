"""Corpora -> shards on disk -> deterministic batches."""

from partwise.data.arithmetic import ProblemSpec
from partwise.data.batches import IGNORE_INDEX, Batch, Examples, eval_windows, sample_windows
from partwise.data.corpora import Arithmetic, Corpus, Python, Shakespeare, TextFile
from partwise.data.data_option import parse_data_option
from partwise.data.documents import Folder, JsonLines
from partwise.data.examples import (
    ProblemWindows,
    SequencePairs,
    Windows,
    build_examples,
    problem_lines,
)
from partwise.data.masking import MaskedWindows
from partwise.data.pairs import ArithmeticPairs, PairFile, TextPairs
from partwise.data.problem_splits import generate_problems
from partwise.data.problems import solve, split_problems
from partwise.data.shards import Dataset, Shard, prepare

__all__ = [
    "IGNORE_INDEX",
    "Arithmetic",
    "ArithmeticPairs",
    "Batch",
    "Corpus",
    "Dataset",
    "Examples",
    "Folder",
    "JsonLines",
    "MaskedWindows",
    "PairFile",
    "ProblemSpec",
    "ProblemWindows",
    "Python",
    "SequencePairs",
    "Shakespeare",
    "Shard",
    "TextFile",
    "TextPairs",
    "Windows",
    "build_examples",
    "eval_windows",
    "generate_problems",
    "parse_data_option",
    "prepare",
    "problem_lines",
    "sample_windows",
    "solve",
    "split_problems",
]
