"""Tokens on disk: `train.bin` is a plain array of ids, `train.json` has its type, length and SHA-256.

A corpus is prepared once per choice of options and tokenizer, in a folder named by the digest of both. The folder is
created atomically; a corrupt one, and one whose ids are not those of the source, is prepared again.
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
from partwise.data.corpora import Corpus
from partwise.data.excerpts import equals_hash, equals_source
from partwise.data.pairs import TextPairs
from partwise.files import file_sha256, open_file, others_can_write, private_folder, rename, replace_file, sync
from partwise.machine import cache_folder
from partwise.messages import print_message
from partwise.records import DamagedFileError, read_record
from partwise.tokenizers import Text, Tokenizer, TokenizerRecipe, WithSpecialTokens, load_tokenizer

VERSION = 1
"""The version of this layout. Increases whenever older folders must not be read."""

CHUNK_CHARACTERS = 1 << 18
"""Approximate characters encoded at a time: few enough to stay in the CPU cache."""

Progress = Callable[[str, int, int], None]
"""Progress callback: split name, characters processed, total characters."""


IdType = Literal["uint8", "uint16", "uint32"]


class Shard(Config):
    """The metadata of a split's ids."""

    split: str
    dtype: IdType
    count: int = Field(ge=1)  # tokens
    bytes: int = Field(ge=1)  # bytes of the text in UTF-8: the denominator of bits per byte
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    tokenizer: dict[str, Any]
    tokenizer_sha256: str = Field(pattern="^[0-9a-f]{64}$")  # SHA-256 of tokenizer.json
    identity: str = Field(pattern="^[0-9a-f]{64}$")  # of the corpus, with the hash of its source, and the tokenizer


class CorruptDataError(Exception):
    """A prepared folder is missing or does not match its metadata; `prepare` then creates it again."""


class Dataset:
    """A prepared corpus: the ids of each split, memory-mapped and read-only, and their tokenizer.

    Every file is checked by its size and SHA-256 before use. Raises CorruptDataError.
    """

    def __init__(self, folder: Path, corpus: Corpus, identity: str | None = None) -> None:
        """`identity`: what the folder must have been prepared from, if it is known."""
        self.folder = folder
        self.corpus = corpus
        self._shards = _read_shards(folder, identity)
        self._ids: dict[str, np.ndarray] = {}
        reason: str | None = None
        try:
            tokenizer_sha256 = file_sha256(folder / "tokenizer.json")
            for path in folder.iterdir():
                if others_can_write(path):
                    raise CorruptDataError(f"{path} could have been changed by another user")
            for name, shard in self._shards.items():
                self._ids[name] = _open_ids(folder / f"{name}.bin", shard)
                if shard.tokenizer_sha256 != tokenizer_sha256:
                    raise CorruptDataError(f"{folder}: the ids of {name!r} come from another tokenizer.json")
            self.tokenizer: Tokenizer = load_tokenizer(folder / "tokenizer.json")
        except (ConfigError, OSError, ValueError) as error:
            reason = str(error)
        if reason is not None:  # the first error would keep files mapped, which Windows then does not let be replaced
            self._ids.clear()
            raise CorruptDataError(reason)

    def compare_with_source(self) -> None:
        """Raise CorruptDataError unless the ids are those of the corpus, as far as excerpts of it show."""
        known = self.corpus.text_sha256()
        if known and equals_hash(self._ids.values(), self.tokenizer, known):
            return
        for excerpt in self.corpus.excerpts(self.hash):
            name = excerpt.name
            path = self.folder / f"{name}.bin"
            if name not in self._ids or not equals_source(self._ids[name], path, excerpt, self.tokenizer, self.hash):
                raise CorruptDataError(f"{path} does not have the ids of data={self.corpus.name}")

    @property
    def split_names(self) -> tuple[str, ...]:
        """The splits, "train" first."""
        return tuple(self._shards)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def hash(self) -> str:
        """SHA-256 over the SHA-256 of all splits: identifies the data wherever results depend on them."""
        return digest({name: shard.sha256 for name, shard in self._shards.items()})

    def split(self, name: str) -> np.ndarray:
        """The ids of a split, (N,), of an unsigned type. Raises ConfigError."""
        self._shard(name)
        return self._ids[name]

    def tuning_split(self) -> "Dataset":
        """The training split as a dataset: the first nine tenths for training, the rest for validation, no test split.

        Tuning on it never sees the validation split. Pairs are kept whole.
        """
        ids, tokenizer = self.split("train"), self.tokenizer
        n_train = 9 * len(ids) // 10
        if isinstance(tokenizer, WithSpecialTokens):
            eos = np.flatnonzero(np.asarray(ids) == tokenizer.eos_id)
            n_train = int(eos[max(0, 9 * len(eos) // 10 - 1)]) + 1
        if not 0 < n_train < len(ids):
            raise ConfigError(
                f"data={self.corpus.name} has {len(ids)} training tokens: too few to hold out a tenth; give more data"
            )
        dataset = copy.copy(self)
        dataset._ids = {"train": ids[:n_train], "val": ids[n_train:]}
        dataset._shards = {}
        for name, part in dataset._ids.items():
            train = self._shards["train"]
            count, sha256 = len(part), hashlib.sha256(np.ascontiguousarray(part).data).hexdigest()
            size = max(1, round(train.bytes * count / train.count))
            dataset._shards[name] = train.model_copy(
                update={"split": name, "count": count, "bytes": size, "sha256": sha256}
            )
        return dataset

    def bytes(self, name: str) -> int:
        """The UTF-8 bytes of a split's text. Raises ConfigError."""
        return self._shard(name).bytes

    def _shard(self, name: str) -> Shard:
        if name not in self._shards:
            names = ", ".join(self.split_names)
            raise ConfigError(f"data={self.corpus.name} has no split {name!r}: choose one of {names}")
        return self._shards[name]


def build_tokenizer(recipe: TokenizerRecipe, corpus: Corpus) -> Tokenizer:
    """The tokenizer of a corpus: for pairs, with special tokens. Raises ConfigError."""
    tokenizer = recipe.build(corpus)
    return WithSpecialTokens(tokenizer) if corpus.paired else tokenizer


def prepare(
    corpus: Corpus, tokenizer: TokenizerRecipe, cache: Path | None = None, progress: Progress | None = None
) -> Dataset:
    """The corpus as ids, read from `cache` (default: PARTWISE_CACHE or ~/.cache/partwise) or created there.

    Several processes may call this at once. Raises ConfigError for a corpus that cannot be read or encoded.
    """
    identity = {"layout": VERSION, "corpus": corpus.identity(), "tokenizer": tokenizer.identity()}
    key = digest(identity)
    folder = cache_folder("data", cache) / key[:16]
    reason = ""
    if folder.exists() and others_can_write(folder):
        raise ConfigError(
            f"{folder} could be another user's data: delete it, or set PARTWISE_CACHE to a folder that only you can write"
        )
    for attempt in range(4):  # another process may replace the folder while we read it
        try:
            return _open(folder, corpus, key, compare=not attempt)  # afterwards it was just written
        except CorruptDataError as error:
            reason = str(error)
        if not attempt and folder.exists():
            print_message(f"{reason}: preparing the data again")
        try:
            private_folder(folder.parent)
            _create(folder, corpus, tokenizer, key, progress)
        except OSError as error:
            raise ConfigError(
                f"cannot write {folder}: {error.strerror or error}; set PARTWISE_CACHE to a writable folder with free space"
            ) from None
        if corpus.identity() != identity["corpus"]:
            shutil.rmtree(folder, ignore_errors=True)
            raise ConfigError(f"the source of data={corpus.name} changed while it was being read: try again")
    raise ConfigError(
        f"{folder} is corrupt each time it is written ({reason}): check the disk or set PARTWISE_CACHE to another folder"
    )


def _open(folder: Path, corpus: Corpus, identity: str, compare: bool) -> Dataset:
    """The prepared data. Raises CorruptDataError."""
    dataset = Dataset(folder, corpus, identity)
    if compare:
        dataset.compare_with_source()
    return dataset


def _is_valid(folder: Path, corpus: Corpus, identity: str) -> bool:
    try:
        _open(folder, corpus, identity, compare=True)
    except CorruptDataError:
        return False
    return True


def _create(folder: Path, corpus: Corpus, recipe: TokenizerRecipe, identity: str, progress: Progress | None) -> None:
    """Write a temporary folder, flush it to disk, and rename it."""
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        splits = corpus.splits()
        tokenizer = build_tokenizer(recipe, corpus)
        tokenizer.save(temporary / "tokenizer.json")
        for name, text in splits.items():
            shard = _write_split(temporary / f"{name}.bin", text, tokenizer, recipe, identity, progress)
            replace_file(temporary / f"{name}.json", json.dumps(shard.to_dict(), indent=1).encode())
        for path in temporary.iterdir():
            path.chmod(0o600)  # independent of the umask: a file that a group can write would not be trusted
        sync(temporary)
        _publish(temporary, folder, corpus, identity)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _publish(temporary: Path, folder: Path, corpus: Corpus, identity: str) -> None:
    """Rename the temporary folder, replacing a corrupt one; a valid folder of another process stays."""
    try:
        rename(temporary, folder)
        return
    except OSError:
        if not folder.is_dir():
            raise
    if _is_valid(folder, corpus, identity):  # another process was faster
        return
    trash = Path(tempfile.mkdtemp(prefix=f".{folder.name}-corrupt-", dir=folder.parent))
    try:
        rename(folder, trash / folder.name)
        rename(temporary, folder)
    except OSError as error:
        # otherwise another process has replaced it meanwhile; on Windows, another may use it
        if not folder.is_dir() or isinstance(error, PermissionError):
            raise
    finally:
        shutil.rmtree(trash, ignore_errors=True)


def _write_split(
    path: Path,
    text: Text | TextPairs,
    tokenizer: Tokenizer,
    recipe: TokenizerRecipe,
    identity: str,
    progress: Progress | None,
) -> Shard:
    type_name = _smallest_type(tokenizer.vocab_size)
    dtype = np.dtype(type_name)
    sha256, count, size, done = hashlib.sha256(), 0, 0, 0
    with open_file(path, "wb") as file:
        for ids, n_bytes, n_units in _encode_chunks(text, tokenizer):
            if len(ids) and int(ids.max()) > np.iinfo(dtype).max:
                raise OverflowError(f"id {ids.max()} of a vocabulary of {tokenizer.vocab_size} does not fit {dtype}")
            stored = np.ascontiguousarray(ids, dtype=dtype)
            sha256.update(stored.data)
            file.write(stored.data)
            count += len(stored)
            done += n_units
            size += n_bytes
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
        tokenizer=recipe.to_stored(),
        tokenizer_sha256=file_sha256(path.with_name("tokenizer.json")),
        identity=identity,
    )


def _encode_chunks(text: Text | TextPairs, tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int, int]]:
    """For each chunk: its ids, the UTF-8 bytes that they predict, and its number of characters or pairs."""
    if isinstance(text, TextPairs):
        assert isinstance(tokenizer, WithSpecialTokens)
        yield from text.encode_chunks(tokenizer)
        return
    for chunk in tokenizer.chunks(text, CHUNK_CHARACTERS):
        if isinstance(chunk, str) and not chunk.isascii():
            yield tokenizer.encode(chunk), len(chunk.encode()), len(chunk)
        else:
            codes = np.frombuffer(chunk.encode(), dtype=np.uint8) if isinstance(chunk, str) else chunk
            yield tokenizer.encode_ascii(codes), len(codes), len(codes)


def _smallest_type(vocab_size: int) -> IdType:
    """The smallest unsigned type that fits every id. Raises ConfigError."""
    for name in get_args(IdType):
        if vocab_size <= np.iinfo(name).max + 1:
            return name
    raise ConfigError(f"a vocabulary of {vocab_size} does not fit 32 bits: choose another tokenizer")


def _read_shards(folder: Path, identity: str | None) -> dict[str, Shard]:
    shards = {}
    for name in ("train", "val", "test"):
        path = folder / f"{name}.json"
        if name == "test" and not path.exists() and not path.with_suffix(".bin").exists():
            continue
        try:
            record = read_record(path)
        except DamagedFileError as error:
            raise CorruptDataError(str(error)) from None
        if missing := [key for key in Shard.model_fields if key not in record]:
            raise CorruptDataError(f"{path} lacks {missing[0]!r}")
        try:
            shards[name] = Shard.from_dict(record)
        except (ValueError, TypeError, ConfigError) as error:
            raise CorruptDataError(f"{path}: {error}") from None
        if identity is not None and shards[name].identity != identity:
            raise CorruptDataError(f"{path} belongs to data prepared from another source")
    return shards


def _open_ids(path: Path, shard: Shard) -> np.memmap:
    dtype = np.dtype(shard.dtype)
    # check the size before mapping: the metadata may be wrong
    if path.stat().st_size != shard.count * dtype.itemsize:
        raise CorruptDataError(f"{path} has {path.stat().st_size} bytes, not {shard.count * dtype.itemsize}")
    if file_sha256(path) != shard.sha256:
        raise CorruptDataError(f"{path} does not have the SHA-256 {shard.sha256}")
    return np.memmap(path, dtype=dtype, mode="r", shape=(shard.count,))
