"""What a disk may hold after a power loss, by replaying the file operations of a run.

Only what was synced is certain. The content of a file is its content at its last fsync, or anything between that and what
was written since; the entries of a folder are those at its last fsync, with any of the changes since (a stricter model than
journalling file systems keep: Pillai et al. 2014, "All File Systems Are Not Created Equal"). An entry is replaced by a
rename at once: the old file or the new one has the name, never half of either.
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from faults import watched

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")
Number = int
"""Of a file or folder, unique within a recording: inode numbers are used again."""


@dataclass(frozen=True)
class Disk:
    """What was written before a call, and what of it is certain."""

    call: str
    contents: dict[Number, bytes]  # of files
    entries: dict[Number, dict[str, Number]]  # of folders
    synced_contents: dict[Number, bytes]
    synced_entries: dict[Number, dict[str, Number]]

    def after_power_loss(self, folder: Path, draw: random.Random) -> None:
        """Write one of the possible states of the recorded folder into a new folder."""
        self._write_folder(0, folder, draw, draw.choice([0.0, 0.1, 0.5, 0.9, 1.0]))

    def _write_folder(self, number: Number, path: Path, draw: random.Random, reached: float) -> None:
        """`reached`: the probability that a change which was not synced has reached the disk."""
        path.mkdir()
        old, new = self.synced_entries.get(number, {}), self.entries.get(number)
        new = old if new is None else new  # a folder that was removed since
        for name in sorted({*old, *new}):
            child = (new if draw.random() < reached else old).get(name)
            if child is None:
                continue
            if child in self.entries or child in self.synced_entries:
                self._write_folder(child, path / name, draw, reached)
            else:
                (path / name).write_bytes(self._content(child, draw, reached))

    def _content(self, number: Number, draw: random.Random, reached: float) -> bytes:
        synced, written = self.synced_contents.get(number, b""), self.contents.get(number)
        if written is None or written == synced or draw.random() >= reached:
            return synced
        added = written[len(synced) :] if written.startswith(synced) else written
        before = synced if written.startswith(synced) else b""
        size = draw.randint(0, len(added))
        return before + draw.choice([added, added[:size], added[:size] + bytes(len(added) - size), bytes(len(added))])


class Recorder:
    """The states of a folder before each call that changes or syncs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disks: list[Disk] = []
        self._numbers: dict[int, Number] = {}  # inode -> number
        self._next = 0
        self._synced_contents: dict[Number, bytes] = {}
        self._synced_entries: dict[Number, dict[str, Number]] = {}

    def before(self, call: str, *arguments: object) -> None:
        contents: dict[Number, bytes] = {}
        entries: dict[Number, dict[str, Number]] = {}
        inodes: set[int] = set()
        self._walk(self.folder, contents, entries, inodes)
        self._numbers = {inode: number for inode, number in self._numbers.items() if inode in inodes}
        self.disks.append(Disk(call, contents, entries, dict(self._synced_contents), dict(self._synced_entries)))

    def synced(self, descriptor: int) -> None:
        """After an fsync."""
        found = os.fstat(descriptor)
        number = self._numbers.get(found.st_ino)
        last = self.disks[-1]  # was made before the call, so its contents are what is synced
        if number is None:
            return  # elsewhere
        if S_ISDIR(found.st_mode):
            self._synced_entries[number] = last.entries[number]
        else:
            self._synced_contents[number] = last.contents[number]

    def _walk(
        self, path: Path, contents: dict[Number, bytes], entries: dict[Number, dict[str, Number]], inodes: set[int]
    ) -> Number:
        found = path.lstat()
        inodes.add(found.st_ino)
        if found.st_ino not in self._numbers:
            self._numbers[found.st_ino] = self._next
            self._next += 1
        number = self._numbers[found.st_ino]
        if S_ISDIR(found.st_mode):
            entries[number] = {}
            for child in sorted(path.iterdir()):
                entries[number][child.name] = self._walk(child, contents, entries, inodes)
        else:
            contents[number] = path.read_bytes()
        return number


@contextmanager
def recorded(folder: Path) -> Iterator[Recorder]:
    """Record what happens to a folder, which exists."""
    recorder = Recorder(folder)

    def after(name: str, *arguments: Any) -> None:
        if name == "fsync":
            recorder.synced(arguments[0])

    with watched(CALLS, recorder.before, after):
        yield recorder
    recorder.before("the end")
