"""Read the scalars of TensorBoard event files, without TensorBoard, whose import takes seconds.

An event file is a sequence of records (length, its CRC, data, their CRC), and each record a protocol buffer:
`tensorflow/core/util/event.proto` with `summary.proto` and `tensor.proto`.
"""

import os
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from partwise.config import ConfigError, read_file

MAX_BYTES = 1 << 31
"""Event files with histograms and images are large."""

FORMATS = {1: "f", 2: "d", 19: "e"}
"""Formats of `struct` by the number of the type in `types.proto`: float, double and half."""


def read_event_folders(folder: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Relative folder -> tag -> step -> value, for every folder at or below `folder` that has event files.

    If several files of a folder have a step, the newest counts, as after a restart. Raises ConfigError for a damaged file.
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders.sort()
        for name in sorted(name for name in names if "tfevents" in name):  # the name has the time
            scalars = found.setdefault(Path(place).relative_to(folder).as_posix(), {})
            for tag, curve in read_events(Path(place) / name).items():
                scalars.setdefault(tag, {}).update(curve)
    return found


def read_events(path: Path) -> dict[str, dict[int, float]]:
    """Tag -> step -> value of the scalars in one event file; the last value of a step counts.

    A last record that was cut off is ignored, since a killed program leaves one. Raises ConfigError for a damaged file.
    """
    try:
        content = read_file(path, MAX_BYTES)
    except OSError as error:
        raise _refuse(error) from None
    scalars: dict[str, dict[int, float]] = {}
    for position, event in _records(content, path):
        try:
            for tag, step, value in _scalars(event):
                scalars.setdefault(tag, {})[step] = value
        except (ValueError, struct.error, IndexError):
            raise _damaged(path, position) from None
    return scalars


def _refuse(error: OSError) -> ConfigError:
    raise ConfigError(f"cannot read {error.filename}: {error.strerror or error}") from None


def _damaged(path: Path, position: int) -> ConfigError:
    return ConfigError(f"{path} is damaged at byte {position:,}: restore it, or remove the run and train it again")


def _records(content: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    """Position and data of each record whose checksums are right."""
    position = 0
    while len(content) - position >= 12:
        length, check = struct.unpack_from("<QI", content, position)
        if _masked_crc(content[position : position + 8]) != check:
            raise _damaged(path, position)
        end = position + 12 + length
        if end + 4 > len(content):
            return
        data = content[position + 12 : end]
        if _masked_crc(data) != int.from_bytes(content[end : end + 4], "little"):
            raise _damaged(path, position)
        yield position, data
        position = end + 4


@cache
def _crc_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in table]
    return table


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as event files have it."""
    crc, table = 0xFFFFFFFF, _crc_table()
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _scalars(event: bytes) -> Iterator[tuple[str, int, float]]:
    """Tag, step and value of each scalar of an Event."""
    step, summaries = 0, []
    for field, value in _fields(event):
        if field == 2 and isinstance(value, int):
            step = value - (value >> 63 << 64)  # a signed number
        elif field == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for field, entry in _fields(summary):
            if field == 1 and isinstance(entry, bytes):
                tag, number = _summary_value(entry)
                if number is not None:
                    yield tag, step, number


def _summary_value(entry: bytes) -> tuple[str, float | None]:
    """The tag of a Summary.Value, and its number if it is a scalar: `simple_value`, or a tensor of one element."""
    tag, number = "", None
    for field, value in _fields(entry):
        if isinstance(value, int):
            continue
        if field == 1:
            tag = value.decode("utf-8")
        elif field == 2:
            (number,) = struct.unpack("<f", value)
        elif field == 8:
            number = _tensor_value(value)
    return tag, number


def _tensor_value(tensor: bytes) -> float | None:
    """The number of a TensorProto with one element of a float type, else None."""
    kind, content = "", b""
    for field, value in _fields(tensor):
        if field == 1 and isinstance(value, int):
            kind = FORMATS.get(value, "")
        elif field in (4, 5, 6) and isinstance(value, bytes):  # tensor_content, float_val, double_val
            content = value
    if not kind or len(content) != struct.calcsize(kind):
        return None
    return float(struct.unpack(f"<{kind}", content)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a protocol buffer. Raises ValueError or IndexError if there is none."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        if key & 7 == 0:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, position = _varint(message, position)
        else:
            size = {1: 8, 5: 4}.get(key & 7, len(message) + 1)
        if position + size > len(message):
            raise ValueError
        yield key >> 3, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        value |= (byte & 127) << shift
        position, shift = position + 1, shift + 7
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, position
