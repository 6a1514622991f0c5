"""The files of a hand-in, from a file, a folder or a zip file of others: bounded, and nothing is written or followed."""

import os
import stat
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path, PurePosixPath

from partwise.comparison.certificate.certificate import CERTIFICATE_FILE
from partwise.config import ConfigError
from partwise.config.reading import read_file

RESULTS_FILE = "results.json"
LEDGER_FILES = ("ledger.sqlite", "ledger.jsonl")
NAMED = (CERTIFICATE_FILE, RESULTS_FILE, *LEDGER_FILES)
MAX_FILE = 1 << 24
"""The most bytes of one file, and of a zip file; a certificate has 13 KB, a report's results less than 1 MB."""
MAX_ALL = 1 << 26
"""The most bytes of all files that are read from one hand-in."""
MAX_ENTRIES = 5000
"""The most files of a folder or a zip file; a comparison's folder has some hundreds."""
MAX_DEPTH = 6

Files = dict[str, bytes]
"""Path within the hand-in -> content."""


def read_files(path: Path) -> Files:
    """The files of one hand-in that `collect` reads; nothing else is opened. Raises ConfigError."""
    try:
        if path.is_symlink():
            raise ConfigError("it is a link, which is not followed: give the file itself")
        if path.is_dir():
            return read_folder(path)
        content = read_file(path, MAX_FILE)
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror or error}") from None
    return read_zip(content) if zipfile.is_zipfile(BytesIO(content)) else {CERTIFICATE_FILE: content}


def is_wanted(name: str) -> bool:
    last = PurePosixPath(name).name
    return last in NAMED or last.endswith(".py")


def read_folder(folder: Path) -> Files:
    """The files of a folder; of one that has a single zip file and no certificate, as some course servers make, of that."""
    files, zips, total = Files(), list[Path](), 0
    for path in walk(folder):
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() == ".zip":
            zips.append(path)
        elif is_wanted(name):
            files[name] = read_file(path, MAX_FILE)
            total += len(files[name])
            if total > MAX_ALL:
                raise ConfigError(f"its files have more than {MAX_ALL >> 20} MiB")
    has_certificate = any(PurePosixPath(name).name == CERTIFICATE_FILE for name in files)
    return read_zip(read_file(zips[0], MAX_FILE)) if len(zips) == 1 and not has_certificate else files


def walk(folder: Path) -> Iterator[Path]:
    """The regular files below a folder, in order. Raises ConfigError for too many, and for a link in place of a file."""
    count, pending = 0, [(folder, 0)]
    while pending:
        current, depth = pending.pop(0)
        with os.scandir(current) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                count += 1
                if count > MAX_ENTRIES:
                    raise ConfigError(f"it has more than {MAX_ENTRIES:,} files: hand in those that the sheet names")
                if entry.is_symlink():
                    if entry.name in NAMED:
                        raise ConfigError(f"it has {entry.name!r}, which is a link: hand in the file itself")
                    continue
                if entry.is_dir() and depth < MAX_DEPTH:
                    pending.append((Path(entry.path), depth + 1))
                elif entry.is_file():
                    yield Path(entry.path)


def read_zip(content: bytes) -> Files:
    """The files of a zip file, read in memory. Raises ConfigError for one that is damaged, or made to do harm."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_ENTRIES:
                raise ConfigError(f"its zip file has {len(entries):,} entries, more than {MAX_ENTRIES:,}")
            for entry in entries:
                check_entry(entry)
            wanted = [entry for entry in entries if not entry.is_dir() and is_wanted(entry.filename)]
            if sum(entry.file_size for entry in wanted) > MAX_ALL:
                raise ConfigError(f"its zip file unpacks to more than {MAX_ALL >> 20} MiB")
            files = Files()
            for entry in wanted:
                if entry.filename in files:
                    raise ConfigError(f"its zip file has {entry.filename!r} twice")
                with archive.open(entry) as file:
                    files[entry.filename] = file.read(MAX_FILE + 1)
                if len(files[entry.filename]) > MAX_FILE:
                    raise ConfigError(f"its zip file unpacks {entry.filename!r} to more than {MAX_FILE >> 20} MiB")
            return files
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"its zip file is damaged: {error}") from None
    except Exception as error:  # zlib, bz2 and lzma each have an error of their own
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"its zip file is damaged: {type(error).__name__}: {error}") from None


def check_entry(entry: zipfile.ZipInfo) -> None:
    """Raise ConfigError for a path out of the archive, a link, a password, or a size that no file of a hand-in has."""
    name = entry.filename
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if ".." in parts or name.startswith(("/", "\\")) or name[1:2] == ":":
        raise ConfigError(f"its zip file has the path {name!r}, which leads out of it")
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise ConfigError(f"its zip file has {name!r}, which is a link")
    if entry.flag_bits & 1:
        raise ConfigError("its zip file has a password: hand in one without")
    if is_wanted(name) and entry.file_size > MAX_FILE:
        raise ConfigError(f"its zip file unpacks {name!r} to more than {MAX_FILE >> 20} MiB")
