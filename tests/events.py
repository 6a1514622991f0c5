"""Write TensorBoard event files, apart from the product's reader: a bitwise CRC, and events byte by byte."""

import struct
from collections.abc import Mapping
from pathlib import Path


def masked_crc(data: bytes) -> int:
    """CRC-32C bit by bit, masked: rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            low = (crc ^ byte >> bit) & 1
            crc >>= 1
            if low:
                crc ^= 0x82F63B78
    crc = ~crc & 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def varint(value: int) -> bytes:
    value %= 2**64
    groups = []
    while True:
        groups.append(value % 128)
        value //= 128
        if not value:
            return bytes([*(group + 128 for group in groups[:-1]), groups[-1]])


def scalar(tag: str, step: int, value: float) -> bytes:
    """An Event: step, and a summary with one simple value."""
    entry = b"\x0a" + varint(len(tag.encode())) + tag.encode() + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + varint(len(entry)) + entry
    return b"\x10" + varint(step) + b"\x2a" + varint(len(summary)) + summary


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def session_start(step: int) -> bytes:
    """An Event with a SessionLog of the status START, as a writer with `purge_step` begins."""
    return b"\x10" + varint(step) + b"\x3a\x02\x08\x01"


def write_events(
    folder: Path,
    scalars: Mapping[str, Mapping[int, float]],
    name: str = "events.out.tfevents.1",
    start: int | None = None,
    version: int = 2,
) -> Path:
    """Write an event file with tag -> step -> value into a folder, which is made if it does not exist.

    With `start`, it begins with a restart at that step.
    """
    folder.mkdir(parents=True, exist_ok=True)
    begin = [b"\x09" + struct.pack("<d", 1.7e9) + b"\x1a\x0dbrain.Event:" + str(version).encode()]
    begin += [] if start is None else [session_start(start)]
    events = [scalar(tag, step, value) for tag, curve in scalars.items() for step, value in curve.items()]
    (folder / name).write_bytes(b"".join(map(record, [*begin, *events])))
    return folder / name
