"""The tensors in the safetensors files of a folder: where each lies, checked before any is read."""

import json
import math
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from partwise.config import ConfigError, open_to_read, read_file
from partwise.tensor_files import read_header

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_JSON_BYTES = 1 << 26
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class Stored:
    """A tensor in a file."""

    file: BufferedReader
    start: int  # of its bytes
    shape: tuple[int, ...]
    kind: str
    """The type of its numbers, as the file has it; only those of DTYPES are read."""

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.kind]

    @property
    def row_bytes(self) -> int:
        """The size of each index of the first dimension."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def read_rows(self, start: int, stop: int, buffer: Tensor) -> Tensor:
        """Some indices of the first dimension, in the buffer of bytes. Threads may read at the same time."""
        # not from a mapped file: its pages would stay in memory beside the weights
        content = buffer[: (stop - start) * self.row_bytes]
        if read_at(self.file, content, self.start + start * self.row_bytes) != len(content):
            raise ConfigError(f"{self.file.name} ends within a tensor: restore the folder")
        return content.view(self.dtype).view(stop - start, *self.shape[1:])


def read_at(file: BufferedReader, content: Tensor, place: int) -> int:
    """Fill bytes from a place in the file; returns their number."""
    into = content.numpy().data
    if hasattr(os, "preadv"):
        count = 0
        while read := os.preadv(file.fileno(), [into[count:]], place + count) if count < len(into) else 0:
            count += read  # a call reads 2 GiB at most
        return count
    with _seeking:
        file.seek(place)
        return file.readinto(into)


_seeking = Lock()


@contextmanager
def stored_tensors(folder: Path) -> Iterator[dict[str, Stored]]:
    """The tensors in the safetensors files of a folder, by name, while the files are open. Raises ConfigError."""
    from safetensors import SafetensorError, safe_open

    stored: dict[str, Stored] = {}
    with ExitStack() as stack:
        for path, names in weight_files(folder).items():
            try:
                with safe_open(path, framework="pt"):  # checks types, sizes and places of all tensors
                    file = stack.enter_context(open_to_read(path))
                for name, entry in read_header(file)[0].items():
                    if not name.isprintable():
                        raise ConfigError(
                            f"{path}: the tensor name {json.dumps(name)[:80]} is damaged: restore the folder"
                        )
                    if name in stored:
                        raise ConfigError(f"{path}: {name} is also in another file: restore the folder")
                    stored[name] = Stored(file, entry.position, entry.shape, entry.dtype)
            except (SafetensorError, OSError, ValueError) as error:
                raise ConfigError(f"{path} is damaged: {' '.join(str(error).split())[:200]}") from None
            if missing := sorted(names - {*stored}):
                raise ConfigError(f"{path} lacks {missing[0]}, which {INDEX} lists: restore the folder")
        if not stored:
            raise ConfigError(f"{folder} has no tensors: restore the folder")
        yield stored


def weight_files(folder: Path) -> dict[Path, set[str]]:
    """The safetensors files of a folder, with the tensors that the index expects in each. Raises ConfigError."""
    single = folder / WEIGHTS
    if single.exists():
        return {check_file(single): set()}
    if not (folder / INDEX).exists():
        pickled = next(iter(sorted(folder.glob("pytorch_model*.bin"))), None)
        hint = f": {pickled.name} may contain code and is not read; convert it to safetensors" if pickled else ""
        raise ConfigError(f"{folder} has no {WEIGHTS}{hint}")
    weight_map = read_object(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(f"{folder / INDEX} has no weight_map: restore the folder")
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        if not name.isprintable():
            raise ConfigError(
                f"{folder / INDEX}: the tensor name {json.dumps(name)[:80]} is damaged: restore the folder"
            )
        if not isinstance(file, str) or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors", file):
            raise ConfigError(f"{folder / INDEX} names the file {str(file)[:80]!r}: expected a file in the folder")
        files.setdefault(folder / file, set()).add(name)
    return {check_file(path): names for path, names in files.items()}


def check_file(path: Path) -> Path:
    if not path.is_file():  # a pipe would block
        raise ConfigError(f"{path} is missing or not a regular file: restore the folder")
    return path


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size. Raises ConfigError."""
    check_file(path)
    try:
        values = json.loads(read_file(path, MAX_JSON_BYTES))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}: restore the folder") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} does not contain a JSON object: restore the folder")
    return values
