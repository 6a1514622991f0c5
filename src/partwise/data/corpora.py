"""Where text comes from: problems made up on the spot, Shakespeare, the Python at hand, files of one's own."""

import hashlib
import json
import os
import platform
import sysconfig
from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from partwise.config import REGISTRY, ConfigError, Part, did_you_mean, part
from partwise.data import arithmetic
from partwise.tokenizers.texts import LongText, Text, TextOnDisk, hash_file, open_text

TINYSHAKESPEARE = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
TINYSHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


class Corpus(Part):
    """What may stand at `data=`: named splits of text, always the same ones for the same options."""

    family: ClassVar[str] = "data"
    task: ClassVar[str] = "text"
    unit: ClassVar[str] = "characters"
    paired: ClassVar[bool] = False  # whether splits are pairs of a source and a target

    @property
    def answers_only(self) -> bool:
        """Whether a model is trained and scored on what answers a question alone."""
        return False

    @abstractmethod
    def alphabet(self) -> str:
        """The distinct characters of all splits, sorted."""

    @abstractmethod
    def splits(self) -> dict[str, Text]:
        """The text of "train", "val" and, where there is one, "test". Raises ConfigError."""

    def training_text(self) -> Text:
        """The split "train", for tokenizers that learn. Raises ConfigError."""
        return self.splits()["train"]

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Plain values that determine the content of the splits, found without making them. Raises ConfigError."""


class MadeUp(Corpus):
    """Options of every corpus of made-up problems."""

    task: ClassVar[str] = "arithmetic"

    limit: int = 1000
    decimals: int = 2
    operations: str = "+-*/"
    reverse: bool = True
    padding: int = 10
    train: int = Field(3_000_000, ge=1)
    validation: int = Field(10_000, ge=1)
    test: int = Field(10_000, ge=1)
    seed: int = 0
    tail: float = Field(0.0, ge=0, lt=1)
    balance: float = Field(0.0, ge=0, le=1)

    def model_post_init(self, context: Any) -> None:
        self.problems()

    def problems(self) -> arithmetic.Problems:
        """What the problems look like. Raises ConfigError for options that no problem can satisfy."""
        return arithmetic.Problems(self.limit, self.decimals, self.operations, self.reverse, self.padding)

    def longest_line(self) -> int:
        """Characters of the longest problem, its two `$` included."""
        return 3 * (self.padding or self.problems().widest) + 6

    def made(self) -> dict[str, np.ndarray]:
        """The problems of each split as ASCII, one after another."""
        counts = {"train": self.train, "validation": self.validation, "test": self.test}
        return arithmetic.generate(self.problems(), **counts, seed=self.seed, tail=self.tail, balance=self.balance)

    def identity(self) -> dict[str, Any]:
        options = self.to_dict()
        if not self.balance:
            del options["balance"]  # data sets prepared before there was any balance stay valid
        else:
            options["forms"] = arithmetic.FORMS
        return {**options, "version": arithmetic.VERSION}


@part("arithmetic")
class Arithmetic(MadeUp):
    """$(0000753.78+0000000910)=87.3661000$: four operations on two operands in (0, limit], the answer backwards.

    No test or validation problem occurs in training, swapped operands included. `tail=0.1` cuts the validation split
    off the training text instead, where problems may recur. With `aligned` every training window begins at a problem's
    first `$` and holds as many whole problems as fit; `loss_on=answer` trains and scores what stands behind `=`
    alone. With `balance` above 0 training meets rare forms of problems more often, told apart by decimals of operands
    and answer: a share f of an operation's problems becomes one in proportion to f ** (1 - balance).
    """

    aligned: bool = False
    loss_on: Literal["all", "answer"] = "all"

    @property
    def answers_only(self) -> bool:
        return self.loss_on == "answer"

    def alphabet(self) -> str:
        return self.problems().alphabet

    def identity(self) -> dict[str, Any]:
        # how the problems are learnt from changes none of them: both ways share one prepared data set
        return {key: value for key, value in super().identity().items() if key not in ("aligned", "loss_on")}

    def splits(self) -> dict[str, Text]:
        return {**self.made()}


@part("shakespeare")
class Shakespeare(Corpus):
    """TinyShakespeare, 1,115,394 characters of the plays: the first 90 % for training, the rest for validation.

    Karpathy, github.com/karpathy/char-rnn. Taken from the folder PARTWISE_MIRROR if set, else downloaded once.
    """

    def alphabet(self) -> str:
        return self._file().alphabet

    def splits(self) -> dict[str, Text]:
        return _cut(self._file().text)

    def identity(self) -> dict[str, Any]:
        return {"part": self.name, "sha256": TINYSHAKESPEARE_SHA256}

    def _file(self) -> TextOnDisk:
        mirror = os.environ.get("PARTWISE_MIRROR")
        path = Path(mirror) / "tinyshakespeare.txt" if mirror else _download()
        file = open_text(path)
        if file.sha256 != TINYSHAKESPEARE_SHA256:
            raise ConfigError(
                f"{path} has the SHA-256 {file.sha256[:16]}..., not {TINYSHAKESPEARE_SHA256[:16]}...: "
                f"it is not TinyShakespeare, replace it by {TINYSHAKESPEARE}"
            )
        return file


@part("python")
class Python(Corpus):
    """The standard library of the Python that runs: every module but tests, 90 % of the characters for training.

    The cut is at the border of a file. Other versions of Python give other text.
    """

    def alphabet(self) -> str:
        return "".join(sorted(set("\n".join(_standard_library()))))

    def splits(self) -> dict[str, Text]:
        files = _standard_library()
        border = border_between(list(map(len, files)), "\n")
        return {"train": "\n".join(files[:border]) + "\n", "val": "\n".join(files[border:])}

    def identity(self) -> dict[str, Any]:
        content = hashlib.sha256("\n".join(_standard_library()).encode()).hexdigest()
        return {"part": self.name, "python": platform.python_version(), "sha256": content}


@part("text")
class TextFile(Corpus):
    """A text file in UTF-8 at `path`: the first 90 % of the characters for training, the rest for validation."""

    path: str

    def alphabet(self) -> str:
        return open_text(Path(self.path)).alphabet

    def splits(self) -> dict[str, Text]:
        text = open_text(Path(self.path)).text
        splits = _cut(text)
        if min(map(len, splits.values())) < 2:
            raise ConfigError(f"{self.path} holds {len(text)} characters, too few to split: give a longer text")
        return splits

    def identity(self) -> dict[str, Any]:
        return {"part": self.name, "sha256": hash_file(Path(self.path))}


def data_override(word: str) -> str | dict[str, Any]:
    """What `--data WORD` means: the name of a corpus, or the path of a file or folder. Raises ConfigError."""
    known = REGISTRY[Corpus.family]
    if word in known:
        return word
    if word and "\0" not in word and Path(word).is_dir():
        return {"part": "folder", "path": word}
    if Path(word).suffix == ".tsv" or (Path(word).suffix == ".jsonl" and _holds_pairs(Path(word))):
        return {"part": "pairs", "path": word}
    if Path(word).suffix == ".jsonl":
        return {"part": "jsonl", "path": word}
    if "/" in word or os.sep in word or Path(word).suffix:
        return {"part": TextFile.name, "path": word}
    raise ConfigError(f"unknown data {word!r}{did_you_mean(word, known)}, or the path of a text file such as ./{word}")


def _holds_pairs(path: Path) -> bool:
    """Whether the first line of a file of JSON lines has a source and a target."""
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False  # whoever reads the file says what is wrong with it
    return isinstance(first, dict) and {"source", "target"} <= set(first)


def cache_root() -> Path:
    """The folder for all that can be made again: PARTWISE_CACHE, or ~/.cache/partwise."""
    return Path(os.environ.get("PARTWISE_CACHE") or Path.home() / ".cache" / "partwise")


def _cut(text: LongText) -> dict[str, Text]:
    border = int(0.9 * len(text))
    return {"train": text.part(0, border), "val": text.part(border, len(text))}


def border_between(lengths: Sequence[int] | np.ndarray, separator: str) -> int:
    """How many documents of these lengths fit into 90 % of all characters; at least one is on either side."""
    ends = np.cumsum(np.array(lengths, dtype=np.int64) + len(separator))
    return max(1, min(len(ends) - 1, int(np.searchsorted(ends, int(0.9 * ends[-1]))))) if len(ends) else 0


def _download() -> Path:
    import pooch  # slow to import, and rarely needed

    folder = cache_root() / "downloads"
    try:
        known_hash = f"sha256:{TINYSHAKESPEARE_SHA256}"
        return Path(pooch.retrieve(TINYSHAKESPEARE, known_hash, fname="tinyshakespeare.txt", path=folder))
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"cannot download {TINYSHAKESPEARE} ({reason}): set PARTWISE_MIRROR to a folder with tinyshakespeare.txt"
        ) from None


@lru_cache(maxsize=1)
def _standard_library() -> tuple[str, ...]:
    """The text of every module of the standard library that is UTF-8, by relative path. Raises ConfigError."""
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    paths: list[Path] = []
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in left_out]  # never enters them: site-packages can be huge
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    files = []
    for path in sorted(paths, key=lambda path: path.relative_to(root).as_posix()):
        try:
            files.append(path.read_bytes().decode("utf-8"))
        except (OSError, UnicodeDecodeError):
            continue
    if len(files) < 2:
        raise ConfigError(f"data=python: {root} holds no modules as files, give a text file instead: --data ./FILE")
    return tuple(files)
