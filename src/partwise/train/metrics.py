"""`metrics.jsonl`: the metrics of every step and evaluation of a run."""

import json
import os
from pathlib import Path
from typing import Any

from partwise.files import open_file
from partwise.train.run_names import explain_write_errors


class MetricsFile:
    """An append-only file of JSON lines; a line truncated by a kill is ended first, so that later lines stay readable."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "MetricsFile":
        truncated = False
        with explain_write_errors(self.path):
            if self.path.exists() and self.path.stat().st_size:
                with self.path.open("rb") as file:
                    file.seek(-1, os.SEEK_END)
                    truncated = file.read(1) != b"\n"
            self.file = open_file(
                self.path, "ab", buffering=0
            )  # so that closing after a full disk does not raise again
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


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every step and evaluation once, in order; if a resumed run repeated a step, its last line."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    path = folder / "metrics.jsonl"
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
                lines[(line["kind"], line["step"])] = line
            except (ValueError, KeyError, TypeError):
                continue  # truncated by a kill
    return sorted(lines.values(), key=lambda line: (line["step"], line["kind"] != "step"))
