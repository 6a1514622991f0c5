"""`metrics.jsonl`: the metrics of every step and evaluation of a run."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from partwise.config import open_to_read
from partwise.files import open_file
from partwise.records import DamagedFileError, Record, parse, read_bytes
from partwise.run_names import explain_write_errors

METRICS = "metrics.jsonl"
MAX_METRICS = 1 << 32
"""In bytes: twenty million steps."""
NUMBERS = {
    "step": ("loss", "grad_norm", "lr", "tokens", "seconds"),
    "evaluation": ("validation", "training"),
}
"""The numbers of a line, by its kind."""


class MetricsFile:
    """An append-only file of JSON lines; a line truncated by a kill is ended first, so that later lines stay readable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "MetricsFile":
        truncated = False
        with explain_write_errors(self.path):
            if self.path.exists() and self.path.stat().st_size:
                with open_to_read(self.path) as file:
                    file.seek(-1, os.SEEK_END)
                    truncated = file.read(1) != b"\n"
            # unbuffered, so that closing after a full disk does not raise again
            self.file = open_file(self.path, "ab", buffering=0)
            if truncated:
                self._append(b"\n")
        return self

    def write(self, values: dict[str, Any]) -> None:
        with explain_write_errors(self.path):
            self._append(json.dumps(values, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Sync every line to disk."""
        with explain_write_errors(self.path):
            os.fsync(self.file.fileno())

    def _append(self, content: bytes) -> None:
        while content:
            content = content[self.file.write(content) :]

    def __exit__(self, *_: object) -> None:
        self.file.close()


class Unwritten:
    """The metrics of a process that leaves writing to another."""

    def __enter__(self) -> "Unwritten":
        return self

    def write(self, values: dict[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def metrics_fingerprint(folder: Path, size: int | None = None) -> dict[str, Any]:
    """The size in bytes and the SHA-256 of the metrics of a run, or of their first `size` bytes."""
    path = folder / METRICS
    content = read_bytes(path, MAX_METRICS)[:size] if path.exists() else b""
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def check_metrics(folder: Path, fingerprint: dict[str, Any]) -> None:
    """Raise DamagedFileError unless the metrics of a run still begin with those of the time of a checkpoint."""
    path = folder / METRICS
    try:
        intact = metrics_fingerprint(folder, fingerprint["size"]) == fingerprint
    except (OSError, KeyError, TypeError, DamagedFileError) as error:
        raise DamagedFileError(f"{path} cannot be read: {error}") from None
    if not intact:
        raise DamagedFileError(f"{path} was changed or damaged")


def read_metrics_prefix(folder: Path, fingerprint: dict[str, Any]) -> bytes:
    """The metrics of a run up to a checkpoint. Raises DamagedFileError if they have changed since."""
    check_metrics(folder, fingerprint)
    return read_bytes(folder / METRICS, MAX_METRICS)[: fingerprint["size"]]


def cut_metrics(folder: Path, size: int) -> None:
    """Remove the lines after a checkpoint: their steps run again, and a damaged one could pass for another step."""
    path = folder / METRICS
    if path.exists() and path.stat().st_size > size:
        with open_file(path, "r+b") as file:
            file.truncate(size)


def parse_line(text: bytes) -> dict[str, Any] | None:
    """A step or an evaluation; None for a line that was truncated by a kill, or is neither."""
    try:
        line: Record = parse(text, METRICS)
        for key in NUMBERS[line.text("kind")]:
            line.number(key)
        return line if line.whole("step") >= 0 else None
    except (DamagedFileError, KeyError, AttributeError):
        return None


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every step and evaluation once, in order; if a resumed run repeated a step, its last line."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    path = folder / METRICS
    if path.exists():
        for text in read_bytes(path, MAX_METRICS).split(b"\n"):
            if line := parse_line(text):
                lines[(line["kind"], line["step"])] = line
    return sorted(lines.values(), key=lambda line: (line["step"], line["kind"] != "step"))
