"""`metrics.jsonl`: what a run wrote down of each update and evaluation."""

import json
import os
from pathlib import Path
from typing import Any

from partwise.train.names import writing


class Metrics:
    """An append-only file of JSON lines; a line cut by a kill is closed, so that what follows can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Metrics":
        torn = False
        with writing(self.path):
            if self.path.exists() and self.path.stat().st_size:
                with self.path.open("rb") as file:
                    file.seek(-1, os.SEEK_END)
                    torn = file.read(1) != b"\n"
            self.file = self.path.open("ab", buffering=0)  # nothing is left to write when a full disk ends the run
            if torn:
                self._append(b"\n")
        return self

    def write(self, values: dict[str, Any]) -> None:
        with writing(self.path):
            self._append(json.dumps(values, allow_nan=False).encode() + b"\n")

    def flush(self) -> None:
        """Have the system put every line on the disk."""
        with writing(self.path):
            os.fsync(self.file.fileno())

    def _append(self, content: bytes) -> None:
        while content:
            content = content[self.file.write(content) :]

    def __exit__(self, *_: object) -> None:
        self.file.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Every update and evaluation once, in order; where a resumed run wrote a step again, the last writing counts."""
    lines: dict[tuple[str, int], dict[str, Any]] = {}
    path = folder / "metrics.jsonl"
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                line = json.loads(text)
                lines[(line["kind"], line["step"])] = line
            except (ValueError, KeyError, TypeError):
                continue  # a line torn by a kill
    return sorted(lines.values(), key=lambda line: (line["step"], line["kind"] != "step"))
