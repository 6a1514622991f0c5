"""JSON files, replaced at once and synced to disk; some with the hash of their content."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from partwise.config import ConfigError, digest
from partwise.files import replace_file, write_file

Writer = Callable[[Path], None]


def write_json(path: Path, values: Any) -> None:
    """Replace a JSON file atomically and sync it to disk; on OSError the old file is left in place."""
    replace_file(path, json_bytes(values))


def write_hashed(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object atomically, with the hash of its content."""
    write_json(path, {**content, "sha256": digest(content)})


def check_hash(content: Mapping[str, Any], sha256: Any, path: Path | str, remedy: str) -> None:
    """Compare a file's other keys with the hash that `write_hashed` added. Raises ConfigError if it differs or is missing."""
    if sha256 != digest(content):
        changed = "lacks its hash" if sha256 is None else "was changed after it was written"
        raise ConfigError(f"{path} {changed}: {remedy}")


def json_bytes(values: Any) -> bytes:
    return json.dumps(values, indent=1, allow_nan=False).encode()


def json_writer(values: Any) -> Writer:
    return lambda path: write_file(path, json_bytes(values))
