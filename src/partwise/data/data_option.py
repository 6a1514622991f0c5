"""`--data VALUE`: a name, a file or a folder."""

import json
import os
from pathlib import Path
from typing import Any

from partwise.config import REGISTRY, ConfigError, did_you_mean, open_to_read
from partwise.data.corpora import Corpus, TextFile


def parse_data_option(value: str) -> str | dict[str, Any]:
    """The override for `--data VALUE`: the name of a corpus, or the path of a file or folder. Raises ConfigError."""
    known = REGISTRY[Corpus.family]
    if value in known:
        return value
    if value and "\0" not in value and Path(value).is_dir():
        return {"part": "folder", "path": value}
    if Path(value).suffix == ".tsv" or (Path(value).suffix == ".jsonl" and _has_pairs(Path(value))):
        return {"part": "pairs", "path": value}
    if Path(value).suffix == ".jsonl":
        return {"part": "jsonl", "path": value}
    if "/" in value or os.sep in value or Path(value).suffix:
        return {"part": TextFile.name, "path": value}
    if value.lower() in known:
        return value.lower()
    raise ConfigError(
        f"unknown data {value!r}{did_you_mean(value, known)}, or the path of a text file such as ./{value}"
    )


def _has_pairs(path: Path) -> bool:
    """Whether the first line of a file of JSON lines has a source and a target."""
    try:
        with open_to_read(path) as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError, RecursionError):
        return False  # the corpus reports the error when it reads the file
    return isinstance(first, dict) and {"source", "target"} <= set(first)
