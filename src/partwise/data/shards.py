"""Tokens on disk: `train.bin` is a bare array of ids, `train.json` says of which type, how many, and their SHA-256.

A corpus is made once per choice of options and tokenizer, in a folder named by the digest of both. The folder appears
whole or not at all, and what is found damaged is made again.
"""

import copy
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field

from partwise.config import Config, ConfigError, digest
from partwise.data.corpora import Corpus, cache_root
from partwise.data.pairs import PairText
from partwise.tokenizers import Text, Tokenizer, TokenizerRecipe, WithSpecials, load_tokenizer

VERSION = 1
"""Of this layout. Counts up whenever older folders must not be read."""

PIECE = 1 << 18
"""Characters, more or less, that are encoded in one go: few enough to stay in the processor's cache."""

Progress = Callable[[str, int, int], None]
"""Called with the name of a split, the characters of it that are done, and all of its characters."""


IdType = Literal["uint8", "uint16", "uint32"]


class Shard(Config):
    """What stands beside a split's ids."""

    split: str
    dtype: IdType
    count: int = Field(ge=1)  # tokens
    bytes: int = Field(ge=1)  # of the text in UTF-8: the denominator of bits per byte
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    tokenizer: dict[str, Any]
    tokenizer_sha256: str = Field(pattern="^[0-9a-f]{64}$")  # of tokenizer.json


class DamagedError(Exception):
    """A prepared folder is missing or does not hold what it says; `prepare` answers by making it again."""


class Dataset:
    """A prepared corpus: the ids of each split, memory-mapped and read-only, and the tokenizer that made them.

    Every file is checked by its size and its SHA-256 before it is used. Raises DamagedError.
    """

    def __init__(self, folder: Path, corpus: Corpus) -> None:
        self.folder = folder
        self.corpus = corpus
        self._shards = _read_shards(folder)
        self._ids: dict[str, np.ndarray] = {}
        try:
            self.tokenizer: Tokenizer = load_tokenizer(folder / "tokenizer.json")
            tokenizer_sha256 = _digest_file(folder / "tokenizer.json")
            for name, shard in self._shards.items():
                self._ids[name] = _open_ids(folder / f"{name}.bin", shard)
                if shard.tokenizer_sha256 != tokenizer_sha256:
                    raise DamagedError(f"{folder}: the ids of {name!r} come from another tokenizer.json")
        except (ConfigError, OSError, ValueError) as error:
            raise DamagedError(str(error)) from None

    @property
    def names(self) -> tuple[str, ...]:
        """The splits, "train" first."""
        return tuple(self._shards)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def hash(self) -> str:
        """SHA-256 over the SHA-256 of all splits: the data's name, wherever results depend on the data."""
        return digest({name: shard.sha256 for name, shard in self._shards.items()})

    def split(self, name: str) -> np.ndarray:
        """The ids of a split, (N,), of an unsigned type. Raises ConfigError."""
        self._find(name)
        return self._ids[name]

    def held_out(self) -> "Dataset":
        """The training split as a data set of its own: learn from nine tenths of it, be scored on the last. No test split.

        What is tuned there has not seen the validation split. Pairs are not cut in two.
        """
        ids, tokenizer = self.split("train"), self.tokenizer
        cut = 9 * len(ids) // 10
        if isinstance(tokenizer, WithSpecials):
            ends = np.flatnonzero(np.asarray(ids) == tokenizer.end)
            cut = int(ends[max(0, 9 * len(ends) // 10 - 1)]) + 1
        if not 0 < cut < len(ids):
            raise ConfigError(f"data={self.corpus.name} has {len(ids)} training tokens: too few to hold a tenth out")
        part = copy.copy(self)
        part._ids = {"train": ids[:cut], "val": ids[cut:]}
        part._shards = {}
        for name, piece in part._ids.items():
            whole = self._shards["train"]
            count, sha256 = len(piece), hashlib.sha256(np.ascontiguousarray(piece).data).hexdigest()
            size = max(1, round(whole.bytes * count / whole.count))
            part._shards[name] = whole.model_copy(
                update={"split": name, "count": count, "bytes": size, "sha256": sha256}
            )
        return part

    def bytes(self, name: str) -> int:
        """How many bytes of UTF-8 a split's text takes. Raises ConfigError."""
        return self._find(name).bytes

    def _find(self, name: str) -> Shard:
        if name not in self._shards:
            raise ConfigError(f"data={self.corpus.name} has no split {name!r}: choose one of {', '.join(self.names)}")
        return self._shards[name]


def build_tokenizer(recipe: TokenizerRecipe, corpus: Corpus) -> Tokenizer:
    """The tokenizer of a corpus: for pairs, with ids for padding, start and end. Raises ConfigError."""
    tokenizer = recipe.build(corpus)
    return WithSpecials(tokenizer) if corpus.paired else tokenizer


def prepare(
    corpus: Corpus, tokenizer: TokenizerRecipe, cache: Path | None = None, progress: Progress | None = None
) -> Dataset:
    """The corpus as ids, from `cache` (default: PARTWISE_CACHE or ~/.cache/partwise) if it is there, else made.

    Safe to call from several processes at once. Raises ConfigError for a corpus that cannot be had or encoded.
    """
    identity = {"layout": VERSION, "corpus": corpus.identity(), "tokenizer": tokenizer.identity()}
    folder = (cache or cache_root()) / "data" / digest(identity)[:16]
    trouble = ""
    for _ in range(4):  # another process may replace the folder while we read it
        try:
            return Dataset(folder, corpus)
        except DamagedError as error:
            trouble = str(error)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            _make(folder, corpus, tokenizer, progress)
        except OSError as error:
            raise ConfigError(
                f"cannot write {folder}: {error.strerror or error}; set PARTWISE_CACHE to a folder with room"
            ) from None
        if corpus.identity() != identity["corpus"]:
            shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(f"the source of data={corpus.name} changed while it was read: try again")
    raise ConfigError(
        f"{folder} is damaged again and again ({trouble}): check the disk or set PARTWISE_CACHE elsewhere"
    )


def _make(folder: Path, corpus: Corpus, recipe: TokenizerRecipe, progress: Progress | None) -> None:
    """Write the folder beside its place, flush it to disk, and move it there."""
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        splits = corpus.splits()
        tokenizer = build_tokenizer(recipe, corpus)
        tokenizer.save(draft / "tokenizer.json")
        for name, text in splits.items():
            shard = _write_split(draft / f"{name}.bin", text, tokenizer, recipe, progress)
            _write(draft / f"{name}.json", json.dumps(shard.to_dict(), indent=1).encode())
        _flush_folder(draft)
        _move(draft, folder, corpus)
        _flush_folder(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _move(draft: Path, folder: Path, corpus: Corpus) -> None:
    try:
        draft.rename(folder)
        return
    except OSError:
        if not folder.is_dir():
            raise
    try:
        Dataset(folder, corpus)  # another process was faster: its work is as good as ours
    except DamagedError:
        aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-damaged-", dir=folder.parent))
        try:
            folder.rename(aside / folder.name)
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():  # if it is there, another process replaced it in between
                raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _write_split(
    path: Path, text: Text | PairText, tokenizer: Tokenizer, recipe: TokenizerRecipe, progress: Progress | None
) -> Shard:
    type_name = _smallest_type(tokenizer.vocab_size)
    dtype = np.dtype(type_name)
    sha256, count, size, done = hashlib.sha256(), 0, 0, 0
    with path.open("wb") as file:
        for ids, more, units in _encoded(text, tokenizer):
            if len(ids) and int(ids.max()) > np.iinfo(dtype).max:
                raise OverflowError(f"id {ids.max()} of a vocabulary of {tokenizer.vocab_size} does not fit {dtype}")
            stored = np.ascontiguousarray(ids, dtype=dtype)
            sha256.update(stored.data)
            file.write(stored.data)
            count += len(stored)
            done += units
            size += more
            if progress:
                progress(path.stem, done, len(text))
        file.flush()
        os.fsync(file.fileno())
    return Shard(
        split=path.stem,
        dtype=type_name,
        count=count,
        bytes=size,
        sha256=sha256.hexdigest(),
        tokenizer=recipe.to_dict(),
        tokenizer_sha256=_digest_file(path.with_name("tokenizer.json")),
    )


def _encoded(text: Text | PairText, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int, int]]:
    """Ids, the bytes that are predicted from them, and the characters or pairs that they are, piece by piece."""
    if isinstance(text, PairText):
        assert isinstance(tokenizer, WithSpecials)
        yield from text.encoded(tokenizer)
        return
    for piece in tokenizer.pieces(text, PIECE):
        if isinstance(piece, str) and not piece.isascii():
            yield tokenizer.encode(piece), len(piece.encode()), len(piece)
        else:
            codes = np.frombuffer(piece.encode(), dtype=np.uint8) if isinstance(piece, str) else piece
            yield tokenizer.encode_ascii(codes), len(codes), len(codes)


def _smallest_type(vocab_size: int) -> IdType:
    """The smallest unsigned type that holds every id. Raises ConfigError."""
    for name in get_args(IdType):
        if vocab_size <= np.iinfo(name).max + 1:
            return name
    raise ConfigError(f"a vocabulary of {vocab_size} does not fit 32 bits: choose another tokenizer")


def _read_shards(folder: Path) -> dict[str, Shard]:
    shards = {}
    for name in ("train", "val", "test"):
        path = folder / f"{name}.json"
        if name == "test" and not path.exists() and not path.with_suffix(".bin").exists():
            continue
        try:
            shards[name] = Shard.from_dict(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError, ConfigError) as error:
            raise DamagedError(f"{path}: {error}") from None
    return shards


def _open_ids(path: Path, shard: Shard) -> np.memmap:
    dtype = np.dtype(shard.dtype)
    # the size first: nothing is mapped on the word of a file alone
    if path.stat().st_size != shard.count * dtype.itemsize:
        raise DamagedError(f"{path} has {path.stat().st_size} bytes, not {shard.count * dtype.itemsize}")
    if _digest_file(path) != shard.sha256:
        raise DamagedError(f"{path} does not have the SHA-256 {shard.sha256}")
    return np.memmap(path, dtype=dtype, mode="r", shape=(shard.count,))


def _digest_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder last through a loss of power, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
