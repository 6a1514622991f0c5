"""safetensors files that hold rows of tensors: processes that share a model write the rows that each has, and any number
of processes reads them.

A file says which rows it holds as the safetensors storage of torch's distributed checkpoint does: that reads our files, and
we read its own. Its `save` and `load` are not used, since with them processes exchange their plans as pickles.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from partwise.config import open_to_read
from partwise.files import open_file
from partwise.records import DamagedFileError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
ROWS, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
"""Where torch's distributed checkpoint keeps the first index of what a file holds of each tensor."""

Shape = tuple[int, ...]


class RowRange(NamedTuple):
    """Consecutive rows of a tensor of `shape`, from its row `first`."""

    data: Tensor
    first: int
    shape: Shape


def whole(tensor: Tensor) -> RowRange:
    return RowRange(tensor, 0, tuple(tensor.shape))


def write_rows(path: Path, tensors: Mapping[str, RowRange]) -> None:
    """Write rows of tensors. Raises OSError."""
    kinds = {name: (rows.data.dtype, tuple(rows.data.shape)) for name, rows in tensors.items()}
    offsets = {
        name: {OFFSETS: [rows.first, *[0] * len(rows.shape)][: len(rows.shape)]} for name, rows in tensors.items()
    }
    write_tensors(path, kinds, lambda name: tensors[name].data, {ROWS: json.dumps(offsets), "DCP_VERSION": "1.0"})


def write_tensors(
    path: Path,
    kinds: Mapping[str, tuple[torch.dtype, Shape]],
    read: Callable[[str], Tensor],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors of the given types and shapes one after the other, so that only one is in memory. Raises OSError."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    position = 0
    names = sorted(kinds, key=lambda name: (-kinds[name][0].itemsize, name))  # so that each is aligned to its type
    for name in names:
        dtype, shape = kinds[name]
        end = position + dtype.itemsize * count(shape)
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open_file(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in names:
            file.write(bytes_of(read(name).detach().cpu().contiguous()))


def count(shape: Iterable[int]) -> int:
    return int(torch.Size(shape).numel())


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data


class Chunk(NamedTuple):
    """Rows of a tensor in a file, from the byte `position` on."""

    path: Path
    position: int
    dtype: torch.dtype
    shape: Shape
    offsets: Shape


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of safetensors files, by name, each read when it is asked for.

    Raises DamagedFileError if a file cannot be read, or if the rows of a tensor are not all there, or are there twice.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.chunks: dict[str, list[Chunk]] = {}
        for path in paths:
            for name, chunk in read_chunks(path):
                self.chunks.setdefault(name, []).append(chunk)
        self.shapes = {name: whole_shape(name, chunks) for name, chunks in self.chunks.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self.rows(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    def kind(self, name: str) -> tuple[torch.dtype, Shape]:
        return self.chunks[name][0].dtype, self.shapes[name]

    def rows(self, name: str, first: int = 0, end: int | None = None) -> Tensor:
        """Rows `first` to `end` of a tensor; all by default."""
        dtype, shape = self.kind(name)
        if not shape:
            tensor = torch.empty((), dtype=dtype, device="cpu")
            self._read(self.chunks[name][0], 0, tensor)
            return tensor
        end = shape[0] if end is None else end
        tensor = torch.empty((max(0, end - first), *shape[1:]), dtype=dtype, device="cpu")
        for chunk in self.chunks[name]:
            start, stop = max(first, chunk.offsets[0]), min(end, chunk.offsets[0] + chunk.shape[0])
            if start < stop:
                skipped = (start - chunk.offsets[0]) * count(shape[1:]) * dtype.itemsize
                self._read(chunk, skipped, tensor[start - first : stop - first])
        return tensor

    def _read(self, chunk: Chunk, skipped: int, target: Tensor) -> None:
        """Fill a contiguous tensor. Not memory-mapped: the file may be deleted or truncated meanwhile."""
        try:
            with open_to_read(chunk.path) as file:
                file.seek(chunk.position + skipped)
                if target.numel() and file.readinto(bytes_of(target)) != target.nbytes:
                    raise DamagedFileError(f"{chunk.path} cannot be read: it ends early")
        except OSError as error:
            raise DamagedFileError(f"{chunk.path} cannot be read: {error.strerror or error}") from None


def rows_of(tensors: Mapping[str, Tensor], name: str, first: int, end: int) -> Tensor:
    """Some rows of a tensor in memory or in files."""
    return tensors.rows(name, first, end) if isinstance(tensors, TensorFiles) else tensors[name][first:end]


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """The shapes of tensors in memory or in files."""
    if isinstance(tensors, TensorFiles):
        return tensors.shapes
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


class TensorEntry(NamedTuple):
    """A tensor of a safetensors file: its dtype by the format's name, its shape, and its place in bytes."""

    dtype: str
    shape: Shape
    position: int


def read_header(file: BufferedReader) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The tensors and metadata of an open safetensors file, which `safe_open` must have checked."""
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size))
    metadata = header.pop("__metadata__", None) or {}
    return {
        name: TensorEntry(entry["dtype"], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0])
        for name, entry in header.items()
    }, metadata


def read_chunks(path: Path) -> list[tuple[str, Chunk]]:
    """The rows of each tensor in a file. Raises DamagedFileError."""
    found = []
    try:
        with open_to_read(path) as file, safe_open(path, framework="pt"):  # checks types, sizes and places
            header, metadata = read_header(file)
        known = json.loads(metadata.get(ROWS, "{}"))
        for name, entry in header.items():
            offsets = tuple(known[name][OFFSETS]) if known else (0,) * len(entry.shape)
            if len(offsets) != len(entry.shape) or not all(type(each) is int and each >= 0 for each in offsets):
                raise ValueError(f"{name} begins at {offsets}")
            found.append((name, Chunk(path, entry.position, DTYPES[entry.dtype], entry.shape, offsets)))
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFileError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    return found


def whole_shape(name: str, chunks: list[Chunk]) -> Shape:
    """The shape of a tensor whose chunks, which are put in order, hold each row once. Raises DamagedFileError."""
    chunks.sort(key=lambda chunk: chunk.offsets)
    end, first = 0, chunks[0]
    for chunk in chunks:
        same = chunk.dtype == first.dtype and chunk.shape[1:] == first.shape[1:] and not any(chunk.offsets[1:])
        if not same or chunk.offsets[:1] not in ((), (end,)) or (chunk.shape == () and len(chunks) > 1):
            raise DamagedFileError(
                f"{chunk.path} is damaged: the chunks do not contain each row of {name} exactly once"
            )
        end += chunk.shape[0] if chunk.shape else 0
    return (end, *first.shape[1:]) if first.shape else ()
