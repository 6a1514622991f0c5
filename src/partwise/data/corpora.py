"""Corpora: synthetic problems, Shakespeare, Python's standard library, and text files."""

import bz2
import hashlib
import os
import platform
import sysconfig
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from partwise.config import (
    ConfigError,
    Neutral,
    Part,
    decode_text,
    digest,
    open_to_read,
    part,
    read_file,
    skip_mark,
)
from partwise.data import arithmetic, problem_splits
from partwise.data.excerpts import Excerpt
from partwise.tokenizers.text import LazyText, Text, hash_text, open_text

TINYSHAKESPEARE_FILE = Path(__file__).with_name("texts") / "tinyshakespeare.txt.bz2"
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


MAX_BYTES, MAX_PROBLEMS, PART_BYTES = 1 << 20, 1 << 15, 1 << 14
"""Larger files, and more held-out problems, are compared with prepared ids in parts only, of PART_BYTES each."""


class Corpus(Part):
    """A corpus, `data=`: named splits of text, a pure function of its options."""

    family: ClassVar[str] = "data"
    task: ClassVar[str] = "text"
    unit: ClassVar[str] = "characters"
    paired: ClassVar[bool] = False  # whether splits are pairs of a source and a target

    @property
    def label(self) -> str:
        """Its name in output: that of the corpus, or of the file or folder that it reads."""
        return str(getattr(self, "path", self.name))

    @property
    def answers_only(self) -> bool:
        """Whether a model is trained and scored on the answers of problems only."""
        return False

    @property
    def masked_share(self) -> float:
        """The share of tokens that are hidden for a model to predict; 0 if it predicts each token from those before it."""
        return 0.0

    @abstractmethod
    def alphabet(self) -> str:
        """The distinct characters of all splits, sorted."""

    @abstractmethod
    def splits(self) -> dict[str, Text]:
        """The text of "train", "val" and, if there is one, "test". Raises ConfigError."""

    def training_text(self) -> Text:
        """The split "train", for training tokenizers. Raises ConfigError."""
        return self.splits()["train"]

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Plain values that determine the content of the splits, found without creating them. Raises ConfigError."""

    def text_sha256(self) -> str | None:
        """The SHA-256 of the text of all splits in UTF-8, if it is known without creating them."""
        return None

    def excerpts(self, key: str) -> list[Excerpt]:
        """The texts to compare with prepared ids: as much as can be read at once. `key` varies the positions."""
        return []


class TextCorpus(Corpus):
    """Options of every corpus of running text."""

    mask_rate: Annotated[float, Neutral(0.0)] = Field(0.0, ge=0, le=1)
    """The share of tokens hidden for an encoder alone to predict, as in BERT: 0.15. 0: predict the next token."""

    @property
    def masked_share(self) -> float:
        return self.mask_rate


class SyntheticProblems(Corpus):
    """Options of every corpus of synthetic problems."""

    task: ClassVar[str] = "arithmetic"

    limit: int = 1000
    """The largest operand."""
    decimals: int = 2
    """The most decimals of an operand."""
    operations: str = "+-*/"
    """The operations that occur, any of `+-*/`."""
    reverse: bool = True
    """Write answers from the last digit to the first."""
    padding: int = 10
    """Characters of an operand, filled up with zeros; shorter answers end with zeros."""
    train: int = Field(3_000_000, ge=1)
    """Problems in the training split."""
    validation: int = Field(10_000, ge=1)
    """Problems in the validation split."""
    test: int = Field(10_000, ge=1)
    """Problems in the test split."""
    seed: int = 0
    """Seed of the problems."""
    validation_tail: float = Field(0.0, ge=0, lt=1)
    """The fraction of the training text that is cut from its end for validation, where problems may recur. 0: unseen
    problems instead."""
    form_balance: float = Field(0.0, ge=0, le=1)
    """How much more often rare forms of problems occur, up to 1: all equally often."""

    def model_post_init(self, context: Any) -> None:
        self.problem_spec()

    def problem_spec(self) -> arithmetic.ProblemSpec:
        """The format of the problems. Raises ConfigError for options that no problem can satisfy."""
        return arithmetic.ProblemSpec(self.limit, self.decimals, self.operations, self.reverse, self.padding)

    def max_line_length(self) -> int:
        """Characters of the longest problem, including its two `$`."""
        return self.problem_spec().max_length

    def generate_splits(self, max_chunks: int | None = None) -> dict[str, np.ndarray]:
        """The problems of each split as ASCII, concatenated; of training, `max_chunks` chunks."""
        counts = {"train": self.train, "validation": self.validation, "test": self.test}
        return problem_splits.generate_problems(
            self.problem_spec(),
            **counts,
            seed=self.seed,
            validation_tail=self.validation_tail,
            form_balance=self.form_balance,
            max_chunks=max_chunks,
        )

    def excerpts(self, key: str) -> list[Excerpt]:
        """The held-out splits and the first training problems; the rest would take seconds."""
        if self.validation + self.test > MAX_PROBLEMS or self.form_balance:
            return []
        splits = self.generate_splits(max_chunks=1)
        whole = {"val": not self.validation_tail, "train": self.train <= problem_splits.CHUNK_SIZE}
        return [
            Excerpt(name, text, ends=whole.get(name, True) and not (name == "train" and self.validation_tail))
            for name, text in splits.items()
            if len(text) and (name != "val" or whole[name])
        ]

    def identity(self) -> dict[str, Any]:
        options = self.to_stored()
        if not self.form_balance:
            del options["form_balance"]  # unbalanced data do not depend on how forms are balanced
        else:
            options["form_balance_version"] = problem_splits.FORM_BALANCE_VERSION
        return {**options, "version": arithmetic.VERSION}


@part("arithmetic")
class Arithmetic(SyntheticProblems):
    """$(0000753.78+0000000910)=87.3661000$: four operations on two operands in (0, limit], the answer reversed.

    No test or validation problem occurs in training, even with its operands swapped. `validation_tail=0.1` cuts the
    validation split from the end of the training text instead, where problems may recur. With `aligned`, every training
    window begins at a problem's first `$` and contains as many whole problems as fit; `answer_only_loss=true` trains and
    scores only what follows `=`. With `form_balance` above 0, training has more of the rare forms, which are
    distinguished by the decimals of operands and answer: a fraction f of an operation's problems becomes one proportional
    to f ** (1 - form_balance). `steps` writes how an answer is calculated between two `=` before it, one digit at a
    time; the steps are trained like the answer, and the answer alone is scored.
    """

    aligned: bool = False
    """Begin every training window at a problem's first `$`, with as many whole problems as fit."""
    answer_only_loss: bool = False
    """Train and score only what follows `=`."""
    steps: bool = False
    """Write the steps of a calculation before its answer; the answer alone is scored."""

    def problem_spec(self) -> arithmetic.ProblemSpec:
        spec = super().problem_spec()
        return replace(spec, steps=True) if self.steps else spec

    @property
    def answers_only(self) -> bool:
        return self.answer_only_loss

    def alphabet(self) -> str:
        return self.problem_spec().alphabet

    def identity(self) -> dict[str, Any]:
        # windows and loss leave the problems unchanged: all variants share one prepared dataset
        same = {"aligned", "answer_only_loss"} | (set() if self.steps else {"steps"})
        return {key: value for key, value in super().identity().items() if key not in same}

    def splits(self) -> dict[str, Text]:
        return {**self.generate_splits()}


@part("shakespeare")
class Shakespeare(TextCorpus):
    """TinyShakespeare, 1,115,394 characters of the plays: the first 90% for training, the rest for validation.

    Karpathy, github.com/karpathy/char-rnn. The text is part of the package.
    """

    def alphabet(self) -> str:
        return _alphabet((_tinyshakespeare(),))

    def splits(self) -> dict[str, Text]:
        text = _tinyshakespeare()
        end = int(0.9 * len(text))
        return {"train": text[:end], "val": text[end:]}

    def identity(self) -> dict[str, Any]:
        return {"part": self.name, "sha256": TINYSHAKESPEARE_SHA256}

    def text_sha256(self) -> str:
        return TINYSHAKESPEARE_SHA256

    def excerpts(self, key: str) -> list[Excerpt]:
        return [Excerpt(name, text) for name, text in self.splits().items()]


@part("python")
class Python(TextCorpus):
    """The standard library of the running Python: every module except tests, 90% of the characters for training.

    The split is between two files. The text depends on the version of Python.
    """

    def alphabet(self) -> str:
        return _alphabet(("\n", *_standard_library()))

    def splits(self) -> dict[str, Text]:
        files = _standard_library()
        n_train = count_train_documents(list(map(len, files)), "\n")
        return {"train": "\n".join(files[:n_train]) + "\n", "val": "\n".join(files[n_train:])}

    def identity(self) -> dict[str, Any]:
        content = hashlib.sha256("\n".join(_standard_library()).encode()).hexdigest()
        return {"part": self.name, "python": platform.python_version(), "sha256": content}

    def excerpts(self, key: str) -> list[Excerpt]:
        return [Excerpt(name, text) for name, text in self.splits().items()]  # `identity` has read them


@part("text")
class TextFile(TextCorpus):
    """A UTF-8 text file at `path`: the first 90% of the characters for training, the rest for validation."""

    path: str
    """The text file, in UTF-8."""

    def alphabet(self) -> str:
        return open_text(Path(self.path)).alphabet

    def splits(self) -> dict[str, Text]:
        text = open_text(Path(self.path)).text
        splits = _split_90_10(text)
        if min(map(len, splits.values())) < 2:
            raise ConfigError(f"{self.path} has {len(text)} characters, too few to split: give a longer text")
        return splits

    def identity(self) -> dict[str, Any]:
        return {"part": self.name, "sha256": hash_text(Path(self.path))}

    def text_sha256(self) -> str:
        return hash_text(Path(self.path))

    def excerpts(self, key: str) -> list[Excerpt]:
        path = Path(self.path)
        if (size := path.stat().st_size) <= MAX_BYTES:
            return [Excerpt(name, text) for name, text in self.splits().items()]
        # at least the first half of the bytes is of the first 90% of the characters
        starts = [int(digest([key, number])[:15], 16) % (size // 2) for number in range(4)]
        inside = [Excerpt("train", read_part(path, start), starts=False, ends=False) for start in starts]
        first, last = read_part(path, 0), read_part(path, size - PART_BYTES)
        return [Excerpt("train", first, ends=False), *inside, Excerpt("val", last, starts=False)]


def read_part(path: Path, start: int) -> str:
    """PART_BYTES of a text in UTF-8, without the characters that they contain a part of."""
    with open_to_read(path) as file:
        file.seek(start or skip_mark(file))
        return file.read(PART_BYTES).decode("utf-8", errors="ignore")


def _split_90_10(text: LazyText) -> dict[str, Text]:
    end = int(0.9 * len(text))
    return {"train": text.subtext(0, end), "val": text.subtext(end, len(text))}


def count_train_documents(lengths: Sequence[int] | np.ndarray, separator: str) -> int:
    """The number of documents of these lengths that fit into 90% of all characters; each split has at least one."""
    ends = np.cumsum(np.array(lengths, dtype=np.int64) + len(separator))
    return max(1, min(len(ends) - 1, int(np.searchsorted(ends, int(0.9 * ends[-1]))))) if len(ends) else 0


@lru_cache(maxsize=2)
def _alphabet(texts: tuple[str, ...]) -> str:
    """Their characters in order."""
    return "".join(sorted(set().union(*texts)))


@lru_cache(maxsize=1)
def _tinyshakespeare() -> str:
    """The text that the package contains. Raises ConfigError if the file is missing or damaged."""
    try:
        content = bz2.decompress(TINYSHAKESPEARE_FILE.read_bytes())
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{TINYSHAKESPEARE_FILE} cannot be read ({error}): install partwise again") from None
    if hashlib.sha256(content).hexdigest() != TINYSHAKESPEARE_SHA256:
        raise ConfigError(f"{TINYSHAKESPEARE_FILE} has the wrong SHA-256: install partwise again")
    return content.decode("ascii")


@lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    """The text of every standard library module in UTF-8, by relative path. Raises ConfigError."""
    root = Path(sysconfig.get_path("stdlib"))
    excluded = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    paths: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in excluded]  # not walked: site-packages can be huge
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    files = []
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        try:
            files.append(decode_text(read_file(path)))
        except (OSError, UnicodeError):
            continue
    if len(files) < 2:
        raise ConfigError(f"data=python: {root} contains no .py files: give a text file instead: --data ./FILE")
    return tuple(files)
