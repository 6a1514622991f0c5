"""Read the scalars of TensorBoard event files without importing TensorBoard, which takes seconds.

An event file is a sequence of records (length, its CRC, data, their CRC), and each record a protocol buffer:
`tensorflow/core/util/event.proto` with `summary.proto` and `tensor.proto`.
"""

import os
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from partwise.config import ConfigError, read_file

MAX_BYTES = 1 << 31
"""Event files with histograms and images are large."""

FORMATS = {1: "f", 2: "d", 19: "e"}
"""Formats of `struct` by the number of the type in `types.proto`: float, double and half."""


def read_event_folders(folder: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Relative folder -> tag -> step -> value, for every folder at or below `folder` that has event files.

    Values that a restart replaced are left out, as in TensorBoard. Raises ConfigError for a damaged file.
    """
    found: dict[str, dict[str, dict[int, float]]] = {}
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders.sort()
        if files := sorted(name for name in names if "tfevents" in name):  # the name has the time
            found[Path(place).relative_to(folder).as_posix()] = read_events(*(Path(place) / name for name in files))
    return found


def read_events(*paths: Path) -> dict[str, dict[int, float]]:
    """Tag -> step -> value of the scalars in the event files of one folder, the oldest first; the last of a step counts.

    A last record that was cut off is ignored, since a killed program leaves one. Raises ConfigError for a damaged file.
    """
    curves = _Curves()
    for path in paths:
        try:
            content = read_file(path, MAX_BYTES)
        except OSError as error:
            raise _refuse(error) from None
        curves.begin_file()
        for position, event in _records(content, path):
            try:
                curves.add(event)
            except (ValueError, struct.error, IndexError):
                raise _damaged(path, position) from None
    return {tag: curve for tag, curve in curves.by_tag.items() if curve}


class _Curves:
    """The scalars of a folder's events in the order of writing, without those that a restart replaced.

    A SessionLog with the status START at step s, as writers with `purge_step` log it, drops earlier values from s on.
    A newer file that begins at step s of a tag continues an interrupted run: it drops that tag's earlier values from s on.
    Events before version 2 do not mark restarts: there, a step below the latest one drops its tags' values from it on.
    """

    def __init__(self) -> None:
        self.by_tag: dict[str, dict[int, float]] = {}
        self._version = 0.0
        self._latest = -1
        self._in_this_file: set[str] = set()

    def begin_file(self) -> None:
        self._in_this_file = set()

    def add(self, event: bytes) -> None:
        step, summaries, starts = 0, [], False
        for field, value in _fields(event):
            if field == 2 and isinstance(value, int):
                step = value - (value >> 63 << 64)  # a signed number
            elif field == 3 and isinstance(value, bytes):
                self._version = _version(value)
            elif field == 5 and isinstance(value, bytes):
                summaries.append(value)
            elif field == 7 and isinstance(value, bytes):  # a SessionLog; status 1 is START
                starts = dict(_fields(value)).get(1) == 1
        if starts:
            for tag in self.by_tag:
                self._drop(tag, step)
        is_back = self._version < 2 and step < self._latest
        for tag, number in _scalars(summaries):
            if is_back or tag not in self._in_this_file:
                self._drop(tag, step)
            self._in_this_file.add(tag)
            self.by_tag.setdefault(tag, {})[step] = number
        if summaries:
            self._latest = step

    def _drop(self, tag: str, step: int) -> None:
        """Drop the values of a tag from a step on."""
        curve = self.by_tag.get(tag, {})
        if any(each >= step for each in curve):
            self.by_tag[tag] = {each: value for each, value in curve.items() if each < step}


def _version(text: bytes) -> float:
    """The number of `brain.Event:2`; 0 for other text."""
    try:
        return float(text.decode("utf-8").rpartition(":")[2])
    except ValueError:
        return 0.0


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


def _scalars(summaries: Sequence[bytes]) -> Iterator[tuple[str, float]]:
    """Tag and value of each scalar in the summaries of an event."""
    for summary in summaries:
        for field, entry in _fields(summary):
            if field == 1 and isinstance(entry, bytes):
                tag, number = _summary_value(entry)
                if number is not None:
                    yield tag, number


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
